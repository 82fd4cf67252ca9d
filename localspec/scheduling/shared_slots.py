"""Slots that share caches, for several answers at once."""

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
from localspec.scheduling.prefix_cache import PrefixCache
from localspec.scheduling.scheduler import Slot
from localspec.scheduling.shared_costs import SharedCosts, SharedCurve
from localspec.scheduling.shared_scheduler import SharedScheduler
from localspec.scheduling.task import Preempted, Task, Wait
from localspec.sessions.sessions import Sessions

ROOM = 16  # tokens of an answer that must fit when it begins or resumes


class _SlotTarget(LlamaTarget):
    """The target, as used by one of several answers."""

    def __init__(self, slot: SharedSlot) -> None:
        super().__init__(slot.cache)
        self._slot = slot

    def forward(self, request: PassRequest) -> PassResult:
        try:
            return super().forward(request)
        except Preempted:
            needed = len(request.context) + len(request.tree) + ROOM
            self._slot.wait_for_room(min(needed, self.capacity))
            return self.forward(request)


class SharedSlot(Slot):
    """A slot over a part of shared caches, which is empty while it has no task.

    Attributes:
        text: tokens of the last answer.
        keeps: whether its text goes into the prefix cache. Held cells slow down every pass, so an
            answer that reuses nothing leaves nothing either.
    """

    def __init__(
        self,
        number: int,
        slots: SharedSlots,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[Context], DraftModel],
        head: TrainedHead | None,
    ) -> None:
        self._slots = slots
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
        self.target = _SlotTarget(self)
        self.text: Sequence[int] = ()
        self.keeps = True

    @property
    def costs(self) -> CostCurve | None:
        slots = self._slots
        return SharedCurve(slots.costs, self._task, slots.others, slots.bid)

    @property
    def alone(self) -> bool:
        return not self._slots.others(self._task)

    @property
    def shareable_draft(self) -> Context | None:
        """The draft model's cache if it holds target tokens, so that prompts can share it."""
        model = self.parts.model
        return self.draft_cache if model is not None and model.cache is self.draft_cache else None

    @property
    def cells(self) -> int:
        """Approximate number of unshared cells in the target's cache; at least 1 if it holds any,
        as shared cells may become its own."""
        held = len(self.cache.tokens)
        return max(min(1, held), held - self.cache.common)

    def known(self, prompt: Sequence[int]) -> int:
        return self._slots.kept.known(prompt)

    def recall(self, prompt: Sequence[int]) -> list[str]:
        room = min(self.cache.capacity, self._slots.room(self._task))
        return self._slots.kept.recall(prompt, room, drafted=self.shareable_draft is not None)

    def load_prefix(self, prompt: Sequence[int], *, reuse: bool = True) -> int:
        """Wait for room for a prompt, then share its cached prefix."""
        self.keeps = reuse
        known = self.known(prompt) if reuse else 0
        self.wait_for_room(min(len(prompt) + ROOM, self.cache.capacity) - known)
        if not reuse:
            return 0
        return self._slots.kept.begin(prompt, self.cache, self.shareable_draft)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        # Skipped if paused answers hold the room; a later answer will measure.
        with self._slots.direct(), suppress(CacheFull, Preempted):
            yield

    def empty(self) -> None:
        self.preempt()
        if self.draft_cache is not None and self.parts.model is not None:
            self.draft_cache.clear()
            self.parts.model.forget()

    def preempt(self) -> None:
        """Free the target's cells; the task has to prefill its text again."""
        self.cache.clear()

    def wait_for_room(self, tokens: int) -> None:
        """Wait until this many tokens fit alongside those of the other tasks."""
        self._slots.wait_for_room(self._task, tokens)

    @property
    def _task(self) -> Task:
        assert self.task is not None, "it runs"
        return self.task

    def _decode(self, wait: Wait, part: PassPart) -> tuple[Rows, float]:
        return self._slots.decode(self._task, wait, part)

    def _chunk(self) -> int:
        return self._slots.chunk(self._task)


class SharedSlots(SharedScheduler):
    """The slots of a pair for several answers, and the prefix cache.

    Args:
        make_model: creates the draft model over a part of the draft's cache.
        heads: for each slot, a trained head with its cache, or None.
        chunk, piece: as for `SharedScheduler`.
    """

    all: Sequence[SharedSlot]

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
        self.kept = PrefixCache(target, draft)
        caches: dict[Wait, SharedContext] = {Wait.TARGET: target}
        if draft is not None:
            caches[Wait.DRAFT] = draft
        super().__init__(caches, chunk=chunk, piece=piece)
        self.shared = list(caches.values())
        self.all = [
            SharedSlot(number, self, target, draft, make_model, head)
            for number, head in enumerate(heads)
        ]
        self._heads = [head.cache for head in heads if isinstance(head, FedHead)]

    def attach_sessions(self, sessions: Sessions, profile: PairProfile) -> None:
        if sessions.files is not None:
            sessions.files.write_apart()
            self.kept.disk = sessions.files
        self.costs = SharedCosts(profile, self.contexts[0].watch)

    def clear(self) -> int:
        return self.kept.clear()

    def free(self) -> None:
        """Free the caches."""
        self.kept.close()
        for cache in [*self._heads, *self.shared]:
            cache.close()

    def make_room(self) -> bool:
        return self.kept.drop_oldest()

    def take(self, task: Task) -> None:
        """Give a task the free slot whose last text shares the longest prefix with its prompt."""
        free = [slot for slot in self.all if slot.task is None]
        slot = max(free, key=lambda slot: shared_prefix(slot.text, task.tokens))
        slot.task, task.slot, slot.keeps = task, slot, True

    def release(self, task: Task) -> None:
        """Put the text of an ended task into the prefix cache, and free its slot."""
        slot: SharedSlot = task.slot
        slot.text = [*slot.cache.tokens]
        if slot.keeps:
            self.kept.keep(slot.cache, slot.shareable_draft)
        slot.empty()
        slot.task = task.slot = None
