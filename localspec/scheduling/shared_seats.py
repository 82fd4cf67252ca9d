"""Seats over shared caches, for several answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from math import ceil

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Rows
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import FedHead, TrainedHead
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_TREE
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import SharedContext
from localspec.llama.target import LlamaTarget, shared_prefix
from localspec.policy.profile import PairProfile
from localspec.policy.target_costs import TargetCosts
from localspec.scheduling.kept_texts import KeptTexts
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.seats import Seat, Seats
from localspec.scheduling.shared_costs import SharedCosts, SharedTargetCosts
from localspec.scheduling.shared_passes import SharedPasses
from localspec.scheduling.task import Displaced, Task, Wait
from localspec.sessions.conversation_files import StoredTexts
from localspec.sessions.sessions import Sessions

ROOM = 16  # tokens of an answer for which there has to be room when it begins, or begins anew
LEAST = 8  # tokens of a draft for which there has to be room in the draft model's cache
MEASURED = 128  # the same when its passes are measured


class SeatTarget(LlamaTarget):
    """The target as one of several answers sees it."""

    def __init__(self, seat: SharedSeat) -> None:
        super().__init__(seat.cache)
        self._seat = seat

    def forward(self, request: PassRequest) -> PassResult:
        self._seat.drafting = False  # a draft, if there is one, is complete
        try:
            return super().forward(request)
        except Displaced:
            needed = len(request.context) + len(request.tree) + ROOM
            self._seat.wait_for_room(min(needed, self.capacity))
            return self.forward(request)


class SharedSeat(Seat):
    """A seat over a part of shared caches, which is empty while nobody sits here.

    Attributes:
        text: tokens of the last answer.
        keeps: whether its text is kept for answers to come. Held cells make every pass longer, so
            an answer that reuses nothing leaves nothing either.
    """

    def __init__(
        self,
        number: int,
        seats: SharedSeats,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[Context], DraftModel],
        head: TrainedHead | None,
    ) -> None:
        self._seats, self._passes = seats, seats.passes
        decode = partial(self._decode, Wait.TARGET)
        cache = Context.of(target, target.lot(number), decode, self._chunk)
        self.draft_cache: Context | None = None
        model = None
        if draft is not None:
            decode = partial(self._decode, Wait.DRAFT)
            self.draft_cache = Context.of(draft, draft.lot(number), decode, self._chunk)
            model = make_model(self.draft_cache)
        super().__init__(cache, Parts(model, head=head))
        self.target = SeatTarget(self)
        self.text: Sequence[int] = ()
        self.keeps = True

    @property
    def costs(self) -> TargetCosts | None:
        costs, passes = self._passes.costs, self._passes
        if costs is None:
            return None
        return SharedTargetCosts(costs, self._sitting, passes.others, passes.bid)

    @property
    def alone(self) -> bool:
        return not self._passes.others(self._sitting)

    @property
    def shareable_draft(self) -> Context | None:
        """The draft model's cache where it is in target tokens, so that prompts can share it."""
        model = self.parts.model
        return self.draft_cache if model is not None and model.cache is self.draft_cache else None

    @property
    def cells(self) -> int:
        """Cells of the target's cache that are its own, about; at least 1 while it holds any, as
        shared ones are its own once nobody else has them."""
        held = len(self.cache.tokens)
        return max(min(1, held), held - self.cache.common[1])

    def known(self, prompt: Sequence[int]) -> int:
        return self._seats.kept.known(prompt)

    def recall(self, prompt: Sequence[int]) -> list[str]:
        room = min(self.cache.capacity, self._passes.room(self._sitting))
        return self._seats.kept.recall(prompt, room, drafted=self.shareable_draft is not None)

    def take_up(self, prompt: Sequence[int], *, reuse: bool = True) -> int:
        """Once there is room for a prompt, share what is known of it."""
        self.keeps = reuse
        known = self.known(prompt) if reuse else 0
        self.wait_for_room(min(len(prompt) + ROOM, self.cache.capacity) - known)
        if not reuse:
            return 0
        return self._seats.kept.begin(prompt, self.cache, self.shareable_draft)

    def allot(self, text: int) -> None:
        if self._seats.draft_room is not None:
            self._seats.draft_room.grant(self, text)

    @contextmanager
    def measuring(self) -> Iterator[bool]:
        # Nothing is measured where answers that pause have the room: another answer will do.
        room = self._seats.draft_room
        with self._passes.direct(self._sitting), suppress(CacheFull, Displaced):
            yield room is None or room.open_to(self, MEASURED)

    def empty(self) -> None:
        self.displace()
        self.forget_draft()

    def displace(self) -> None:
        """Let go of the target's cells: the task reads its text again."""
        self.cache.clear()

    def forget_draft(self) -> None:
        """Let go of the draft model's cells; not in the middle of a draft."""
        if self.draft_cache is not None and self.parts.model is not None:
            self.draft_cache.clear()
            self.parts.model.forget()

    def wait_for_room(self, tokens: int) -> None:
        """Until so many tokens fit beside those of the other tasks."""
        self._passes.wait_for_room(self._sitting, tokens)

    @property
    def _sitting(self) -> Task:
        assert self.task is not None, "it runs"
        return self.task

    def _decode(self, wait: Wait, part: PassPart) -> tuple[Rows, float]:
        return self._passes.decode(self._sitting, wait, part)

    def _chunk(self) -> int:
        return self._passes.chunk(self._sitting)


class DraftRoom:
    """Gives out the cells of a draft model's cache, which all answers share.

    A draft cannot be broken off for want of cells, since what was drawn has to be verified. So
    cells are granted before a step, as the capacity of a seat's cache. Where there is too little,
    younger answers that are not drafting let go of theirs, else the step does not use the model.
    """

    def __init__(
        self, shared: SharedContext, capacity: int, seats: Callable[[], Sequence[SharedSeat]]
    ) -> None:
        self._shared = shared
        self._ratio = max(1.0, shared.capacity / capacity)
        self._seats = seats

    def grant(self, seat: SharedSeat, text: int) -> None:
        """Let a seat draft after so many target tokens, as far as there is room. It counts as
        drafting until it says otherwise."""
        cache = seat.draft_cache
        assert cache is not None
        seat.drafting = True
        least, most = (
            min(self._shared.capacity, ceil((text + nodes) * self._ratio))
            for nodes in (LEAST, MAX_TREE)
        )
        seats = self._seats()
        for younger in reversed(seats[seats.index(seat) + 1 :]):
            if self._left(seat) >= least:
                break
            if not younger.drafting:
                younger.forget_draft()
        left = self._left(seat)
        if left < least:
            seat.forget_draft()
        cache.capacity = min(most, left) if left >= least else 0

    def open_to(self, seat: SharedSeat, tokens: int) -> bool:
        """Let a seat have all that nobody else holds; whether so many tokens fit."""
        cache = seat.draft_cache
        assert cache is not None
        cache.capacity = max(0, min(self._shared.capacity, self._left(seat)))
        return cache.capacity >= min(tokens, self._shared.capacity)

    def _left(self, seat: SharedSeat) -> int:
        """Cells that no other seat holds or was granted, counting shared texts once."""
        own, common = 0, dict[object, int]()
        for one in self._seats():
            cache = one.draft_cache
            if one is seat or cache is None:
                continue
            text, shared = cache.common
            own += max(cache.held, cache.capacity if one.drafting else 0) - shared
            common[text] = max(shared, common.get(text, 0))
        assert seat.draft_cache is not None
        text, shared = seat.draft_cache.common
        return self._shared.cells - own - sum(common.values()) + min(shared, common.get(text, 0))


class SharedSeats(Seats):
    """All seats over a pair, their passes, and the texts that earlier answers left.

    Args:
        make_model: makes the draft model over a part of the draft's cache.
        chunk, piece: as for `SharedPasses`.
        make_head: makes a trained head, with a cache of its own, for one answer.
    """

    all: Sequence[SharedSeat]

    def __init__(
        self,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[Context], DraftModel],
        *,
        chunk: int,
        piece: int | None = None,
        make_head: Callable[[], TrainedHead] | None = None,
    ) -> None:
        self.kept = KeptTexts(target, draft)
        caches: dict[Wait, SharedContext] = {Wait.TARGET: target}
        if draft is not None:
            caches[Wait.DRAFT] = draft
        self.scheduler = Scheduler(
            target.answers,
            take=self._take,
            give_back=self._give_back,
            interrupt=lambda task: self.passes.interrupt(task),
        )
        self.passes = self.scheduler.passes = SharedPasses(
            self.scheduler,
            caches,
            cells=target.cells,
            chunk=chunk,
            piece=piece,
            make_room=self.kept.drop_oldest,
        )
        self.shared = list(caches.values())
        self.draft_room = None
        if draft is not None:
            self.draft_room = DraftRoom(draft, target.capacity, self._seated)
        self.all = [
            SharedSeat(number, self, target, draft, make_model, make_head and make_head())
            for number in range(target.answers)
        ]
        self._heads = [h.cache for seat in self.all if isinstance(h := seat.parts.head, FedHead)]

    def remember(self, sessions: Sessions, profile: PairProfile) -> None:
        if self._heads:
            self._heads[0].beside = self._heads[1:]
        if sessions.files is not None:
            self.kept.disk = StoredTexts(sessions.files, sessions.states.identity)
        self.passes.costs = SharedCosts(profile, self.contexts[0].watch)

    def clear(self) -> int:
        return self.kept.clear()

    def close(self) -> None:
        self.kept.close()
        for cache in [*self._heads, *self.shared]:
            cache.close()

    def _seated(self) -> list[SharedSeat]:
        """Those in use, the oldest task first."""
        return [seat for task in self.scheduler.tasks for seat in self.all if seat.task is task]

    def _take(self, task: Task) -> None:
        """Give a task the free seat whose last answer had most in common with its prompt."""
        free = [seat for seat in self.all if seat.task is None]
        seat = max(free, key=lambda seat: shared_prefix(seat.text, task.tokens))
        seat.task, task.seat, seat.keeps = task, seat, True

    def _give_back(self, task: Task) -> None:
        """Keep the text of a task that ended."""
        seat: SharedSeat = task.seat
        seat.text = [*seat.cache.tokens]
        if seat.keeps:
            self.kept.keep(seat.cache, seat.shareable_draft)
        seat.empty()
        seat.drafting = False
        seat.task = task.seat = None
