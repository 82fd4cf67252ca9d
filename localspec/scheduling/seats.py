"""Seats over shared caches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

from localspec.decoding.interfaces import Limits, PassRequest, PassResult
from localspec.decoding.sampling import Rows
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import TrainedHead
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_TREE
from localspec.llama.shared_context import SharedContext
from localspec.llama.target import LlamaTarget, shared_prefix
from localspec.scheduling.kept_texts import KeptTexts
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.shared_passes import SharedPasses
from localspec.scheduling.task import Displaced, Task, Wait

ROOM = 16  # tokens of an answer for which there has to be room when it begins, or begins anew
LEAST = 8  # tokens of a draft for which there has to be room in the draft model's cache


class Seat:
    """A place for one task: the target's cache and its passes, and what drafts are made of.

    Attributes:
        limits: of its trees.
        drafting: whether a draft is being made.
    """

    def __init__(self, cache: Context, parts: Parts) -> None:
        self.cache, self.parts = cache, parts
        self.target = LlamaTarget(cache)
        self.limits = Limits(cache.capacity, cache.max_draft, cache.max_leaves)
        self.drafting = False


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
        drafting: whether it may need the cells that its draft cache was granted.
        keeps: whether its text is kept for answers to come. Held cells make every pass longer, so
            an answer that reuses nothing leaves nothing either.
    """

    def __init__(
        self,
        number: int,
        passes: SharedPasses,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[Context], DraftModel],
        head: TrainedHead | None,
    ) -> None:
        self._passes = passes
        self.task: Task | None = None
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
    def keeps_draft(self) -> bool:
        """Whether the draft model's cache is in target tokens, so that prompts can share it."""
        return self.parts.model is not None and self.parts.model.cache is self.draft_cache

    @property
    def cells(self) -> int:
        """Cells of the target's cache that are its own, about; at least 1 while it holds any, as
        shared ones are its own once nobody else has them."""
        held = len(self.cache.tokens)
        return max(min(1, held), held - self.cache.common[1])

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
        assert self.task is not None
        self._passes.wait_for_room(self.task, tokens)

    def _decode(self, wait: Wait, part: PassPart) -> tuple[Rows, float]:
        assert self.task is not None
        return self._passes.decode(self.task, wait, part)

    def _chunk(self) -> int:
        assert self.task is not None
        return self._passes.chunk(self.task)


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

    def open_to(self, seat: SharedSeat) -> int:
        """Let a seat have all that nobody else holds; returns how many tokens that is."""
        cache = seat.draft_cache
        assert cache is not None
        cache.capacity = max(0, min(self._shared.capacity, self._left(seat)))
        return cache.capacity

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


class Seats:
    """All seats over a pair, their passes, and the texts that earlier answers left.

    Args:
        make_model: makes the draft model over a part of the draft's cache.
        chunk, piece: as for `SharedPasses`.
        make_head: makes a trained head, with a cache of its own, for one answer.
    """

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
        self.shared = [context for context in (target, draft) if context is not None]
        self._draft_room = None
        if draft is not None:
            self._draft_room = DraftRoom(draft, target.capacity, self._seated)
        self.all = [
            SharedSeat(number, self.passes, target, draft, make_model, make_head and make_head())
            for number in range(target.answers)
        ]

    def recall(self, seat: SharedSeat, tokens: Sequence[int]) -> list[str]:
        """Before a seat begins: keep again what the disk has of a prompt. Returns notices."""
        assert seat.task is not None
        room = min(seat.cache.capacity, self.passes.room(seat.task))
        return self.kept.recall(tokens, room, drafted=seat.keeps_draft)

    def begin(self, seat: SharedSeat, tokens: Sequence[int], *, reuse: bool = True) -> int:
        """Once there is room, share what is known of a prompt; returns how many tokens that is."""
        seat.keeps = reuse
        known = self.kept.known(tokens) if reuse else 0
        seat.wait_for_room(min(len(tokens) + ROOM, seat.cache.capacity) - known)
        if not reuse:
            return 0
        return self.kept.begin(tokens, seat.cache, seat.draft_cache if seat.keeps_draft else None)

    def allot(self, seat: SharedSeat, text: int) -> None:
        """Before a seat drafts after so many tokens: grant cells for it."""
        if self._draft_room is not None:
            self._draft_room.grant(seat, text)

    def open_draft(self, seat: SharedSeat, tokens: int) -> bool:
        """Let a seat measure the draft model's passes, if so many tokens fit."""
        if self._draft_room is None:
            return True
        return self._draft_room.open_to(seat) >= min(tokens, self.shared[1].capacity)

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
        (seat,) = [seat for seat in self.all if seat.task is task]
        seat.text = [*seat.cache.tokens]
        if seat.keeps:
            self.kept.keep(seat.cache, seat.draft_cache if seat.keeps_draft else None)
        seat.displace()
        seat.forget_draft()
        seat.drafting = False
        seat.task = task.seat = None
