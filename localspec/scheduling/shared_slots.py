"""Slots that share caches, for several answers at once, and the texts that are kept for reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import FedHead, TrainedHead
from localspec.llama.context import Context, Passes
from localspec.llama.native_context import CacheFull, SharedContext
from localspec.llama.sequences import shared_prefix
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.scheduling.scheduler import Slot
from localspec.scheduling.shared_costs import SharedCosts, SharedCurve
from localspec.scheduling.shared_scheduler import SharedScheduler
from localspec.scheduling.task import Preempted, Task, Wait
from localspec.sessions.conversations import Conversations
from localspec.sessions.sessions import Sessions

ROOM = 16  # tokens of an answer that must fit when it begins or resumes


class _TargetCache(Context):
    """The target's cache of one of several answers. `wait_for_room`: see `SharedSlot`."""

    wait_for_room: Callable[[int], None]

    def forward(self, request: PassRequest) -> PassResult:
        try:
            return super().forward(request)
        except Preempted:
            needed = len(request.context) + len(request.tree) + ROOM
            self.wait_for_room(min(needed, self.capacity))
            return self.forward(request)


class SharedSlot(Slot):
    """A slot over a part of shared caches, which is empty while it has no task. `text`: tokens of
    the last answer; `keeps`: whether its text goes into the prefix cache. Held cells slow down
    every pass, so an answer that reuses nothing leaves nothing either."""

    def __init__(
        self,
        number: int,
        slots: SharedSlots,
        target: SharedContext,
        draft: SharedContext | None,
        make_model: Callable[[Context], DraftModel],
        head: TrainedHead | None,
    ) -> None:
        def passes(wait: Wait) -> Passes:
            return lambda part: slots.decode(self._task, wait, part)

        def chunk() -> int:
            return slots.chunk(self._task)

        self._slots, self.draft_cache, model = slots, None, None
        if draft is not None:
            own = draft.answer_sequences(number)
            self.draft_cache = Context(draft, own, passes(Wait.DRAFT), chunk)
            model = make_model(self.draft_cache)
        cache = _TargetCache(target, target.answer_sequences(number), passes(Wait.TARGET), chunk)
        cache.wait_for_room = self.wait_for_room
        super().__init__(cache, Parts(model, head=head))
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


@dataclass(slots=True, eq=False)
class _Text:
    """A kept text's sequences in both caches; empty while it is free."""

    target: Context
    draft: Context | None

    @property
    def drafted(self) -> list[int]:
        return [] if self.draft is None else self.draft.tokens


class PrefixCache:
    """Kept texts, the least recently used one first. A text shares cells with the answer it comes
    from, and with answers that have a common prefix. `stored`: where dropped texts are kept and
    restored from, or None."""

    def __init__(self, target: SharedContext, draft: SharedContext | None) -> None:
        def of(shared: SharedContext, number: int) -> Context:
            return Context(shared, shared.kept_sequences(number), make_room=self.drop_oldest)

        self._texts: list[_Text] = []
        self._free = [
            _Text(of(target, number), None if draft is None else of(draft, number))
            for number in range(target.kept)
        ]
        self.stored: Conversations[Any] | None = None

    def keep(self, cache: Context, draft: Context | None) -> None:
        """Keep the text of an answer, in place of any text that it continues."""
        tokens = cache.tokens
        drafted = [] if draft is None else draft.tokens
        if not tokens:
            return
        for text in [*self._texts]:
            shared = shared_prefix(text.target.tokens, tokens)
            whole = shared == len(tokens) and text.target.holds(shared)
            if whole and len(drafted) <= len(text.drafted):
                self._mark_used(text)  # all of it is kept already
                return
            if shared == len(text.target.tokens):
                self._drop(text)
        text = self._take_free()
        text.target.begin_with(cache.sequences.first, tokens)
        if text.draft is not None and draft is not None and drafted:
            text.draft.begin_with(draft.sequences.first, drafted)
        self._texts.append(text)

    def recall(self, prompt: Sequence[int], room: int, *, drafted: bool) -> list[str]:
        """Restore a stored prefix of a prompt, if that pays and fits into `room` tokens.

        `drafted`: whether prompts can share the draft model's cache as well. Returns notices."""
        if self.stored is None:
            return []
        found = self.stored.best(prompt, self.known(prompt), room)
        if found is None:
            return []
        text = self._take_free()
        states = self.stored.states(text.target, text.draft if drafted else None)
        notes = self.stored.read(found, states)
        self._texts.append(text)
        if not text.target.tokens:
            self._drop(text)
        return notes

    def begin(self, prompt: Sequence[int], cache: Context, draft: Context | None) -> int:
        """Make empty caches share the longest kept prefix of a prompt without its last token;
        returns its length in the target's cache."""
        length, text = self._best(prompt, lambda text: text.target)
        if text is not None:
            self._mark_used(text)
            cache.begin_with(text.target.sequences.first, prompt[:length])
        if draft is not None:
            drafted, text = self._best(prompt, lambda text: text.draft)
            if text is not None and text.draft is not None:
                draft.begin_with(text.draft.sequences.first, prompt[:drafted])
        return length

    def known(self, prompt: Sequence[int]) -> int:
        return self._best(prompt, lambda text: text.target)[0]

    def drop_oldest(self) -> bool:
        """Evict the least recently used text; False if nothing is kept."""
        if not self._texts:
            return False
        text = self._texts[0]
        if self.stored is not None:
            self.stored.keep(self.stored.states(text.target, text.draft))
        self._drop(text)
        return True

    def clear(self) -> int:
        """Drop all texts; returns how many tokens they held."""
        count = sum(len(text.target.tokens) for text in self._texts)
        for text in [*self._texts]:
            self._drop(text)
        return count

    def close(self) -> None:
        """Store the kept texts, if that outlives the process, before the caches are freed."""
        if self.stored is not None:
            while self.stored.lasting and self.drop_oldest():
                pass
            self.stored.close()

    def _take_free(self) -> _Text:
        if not self._free:
            self.drop_oldest()
        return self._free.pop()

    def _best(
        self, prompt: Sequence[int], cache: Callable[[_Text], Context | None]
    ) -> tuple[int, _Text | None]:
        best, found = 0, None
        for text in reversed(self._texts):  # the latest among equals, as older ones may be evicted
            if (kept := cache(text)) is not None:
                shared = min(shared_prefix(kept.tokens, prompt), len(prompt) - 1)
                if shared > best and kept.holds(shared):
                    best, found = shared, text
        return best, found

    def _mark_used(self, text: _Text) -> None:
        self._texts.remove(text)
        self._texts.append(text)

    def _drop(self, text: _Text) -> None:
        self._texts.remove(text)
        text.target.clear()
        if text.draft is not None:
            text.draft.clear()
        self._free.append(text)


class SharedSlots(SharedScheduler):
    """The slots of a pair for several answers, and the prefix cache. `make_model`: creates the
    draft model over a part of the draft's cache; `heads`: for each slot, a trained head with its
    cache, or None; `chunk`, `piece`: as for `SharedScheduler`."""

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
        if sessions.kept is not None:
            sessions.kept.apart = True
            self.kept.stored = sessions.kept
        self.costs = SharedCosts(profile, self.contexts[0].watch)

    def clear(self) -> int:
        return self.kept.clear()

    def free(self) -> None:
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
