"""Seats over shared caches, for several answers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Rows
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import FedHead, TrainedHead
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.native_context import CacheFull
from localspec.llama.shared_context import SharedContext
from localspec.llama.target import LlamaTarget, shared_prefix
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.scheduling.kept_texts import KeptTexts
from localspec.scheduling.seats import Seat, Seats
from localspec.scheduling.shared_costs import SharedCosts, SharedCurve
from localspec.scheduling.shared_scheduler import SharedScheduler
from localspec.scheduling.task import Displaced, Task, Wait
from localspec.sessions.sessions import Sessions

ROOM = 16  # tokens of an answer for which there has to be room when it begins, or begins anew


class SeatTarget(LlamaTarget):
    """The target as one of several answers sees it."""

    def __init__(self, seat: SharedSeat) -> None:
        super().__init__(seat.cache)
        self._seat = seat

    def forward(self, request: PassRequest) -> PassResult:
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
        self._seats, self._passes = seats, seats.scheduler
        decode = partial(self._decode, Wait.TARGET)
        cache = Context.over(target, target.answer_sequences(number), decode, self._chunk)
        self.draft_cache: Context | None = None
        model = None
        if draft is not None:
            decode = partial(self._decode, Wait.DRAFT)
            self.draft_cache = Context.over(
                draft, draft.answer_sequences(number), decode, self._chunk
            )
            model = make_model(self.draft_cache)
        super().__init__(cache, Parts(model, head=head))
        self.target = SeatTarget(self)
        self.text: Sequence[int] = ()
        self.keeps = True

    @property
    def costs(self) -> CostCurve | None:
        passes = self._passes
        return SharedCurve(passes.costs, self._sitting, passes.others, passes.bid)

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
        return max(min(1, held), held - self.cache.common)

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

    @contextmanager
    def measuring(self) -> Iterator[None]:
        # Nothing is measured where answers that pause have the room: another answer will do.
        with self._passes.direct(), suppress(CacheFull, Displaced):
            yield

    def empty(self) -> None:
        self.displace()
        if self.draft_cache is not None and self.parts.model is not None:
            self.draft_cache.clear()
            self.parts.model.forget()

    def displace(self) -> None:
        """Let go of the target's cells: the task reads its text again."""
        self.cache.clear()

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


class SharedSeats(Seats):
    """All seats over a pair, their passes, and the texts that earlier answers left.

    Args:
        make_model: makes the draft model over a part of the draft's cache.
        heads: a trained head for each answer, with a cache of its own, or None.
        chunk, piece: as for `SharedScheduler`.
    """

    all: Sequence[SharedSeat]
    scheduler: SharedScheduler

    def __init__(
        self,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[Context], DraftModel],
        heads: Sequence[TrainedHead | None],
        *,
        chunk: int,
        piece: int | None = None,
    ) -> None:
        self.kept = KeptTexts(target, draft)
        caches: dict[Wait, SharedContext] = {Wait.TARGET: target}
        if draft is not None:
            caches[Wait.DRAFT] = draft
        self.scheduler = SharedScheduler(
            target.answers,
            caches,
            cells=target.cells,
            chunk=chunk,
            piece=piece,
            make_room=self.kept.drop_oldest,
            take=self._take,
            give_back=self._give_back,
        )
        self.shared = list(caches.values())
        self.all = [
            SharedSeat(number, self, target, draft, make_model, head)
            for number, head in enumerate(heads)
        ]
        self._heads = [head.cache for head in heads if isinstance(head, FedHead)]

    def remember(self, sessions: Sessions, profile: PairProfile) -> None:
        if self._heads:
            self._heads[0].siblings = self._heads[1:]
        if sessions.files is not None:
            sessions.files.write_apart()
            self.kept.disk = sessions.files
        self.scheduler.costs = SharedCosts(profile, self.contexts[0].watch)

    def clear(self) -> int:
        return self.kept.clear()

    def close(self) -> None:
        self.kept.close()
        for cache in [*self._heads, *self.shared]:
            cache.close()

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
        seat.task = task.seat = None
