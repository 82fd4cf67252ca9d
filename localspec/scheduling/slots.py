"""Slots, the caches and sources with which answers are generated; texts that are kept for reuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from localspec.decoding.interfaces import Limits, PassRequest, PassResult
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import TrainedHead
from localspec.llama.context import Context
from localspec.llama.native_context import CacheFull, SharedContext
from localspec.llama.sequences import shared_prefix
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.scheduling.shared_costs import SharedCosts, SharedCurve
from localspec.scheduling.shared_scheduler import CHUNK, SharedScheduler
from localspec.scheduling.task import Preempted, Task, Wait
from localspec.sessions.conversations import Conversations
from localspec.sessions.sessions import Sessions

ROOM = 16  # tokens of an answer that must fit when it begins or resumes


class _SharedCache(Context):
    """The cache of one of several answers. `wait_for_room`: see `Slot`."""

    wait_for_room: Callable[[int], None]

    def forward(self, request: PassRequest) -> PassResult:
        try:
            return super().forward(request)
        except Preempted:
            needed = len(request.context) + len(request.tree) + ROOM
            self.wait_for_room(min(needed, self.capacity))
            return self.forward(request)


class Slot:
    """Room for one task: the target's cache, and the parts of its drafters; of caches that slots
    share, a part, which is empty while there is no task. `limits`: of its token trees; `sessions`:
    of a single slot, whose caches keep their text for the next task.

    `text`: tokens of the last answer; `keeps`: whether its text goes into the prefix cache, or is
    stored. Held cells slow down every pass, so an answer that reuses nothing leaves nothing."""

    task: Task | None = None
    sessions: Sessions | None = None
    text: Sequence[int] = ()
    keeps = True

    def __init__(
        self, slots: Slots, cache: Context, parts: Parts, draft_cache: Context | None
    ) -> None:
        self._slots, self.cache, self.parts = slots, cache, parts
        self.draft_cache = draft_cache
        self.limits = Limits(cache.capacity, cache.max_draft, cache.max_leaves)

    @property
    def running(self) -> Task:
        assert self.task is not None, "it has a task"
        return self.task

    @property
    def costs(self) -> CostCurve | None:
        """Cost curve of its task in shared passes; None for that of the target."""
        slots = self._slots
        several = len(slots.all) > 1
        return SharedCurve(slots.costs, self.running, slots.others, slots.bid) if several else None

    @property
    def alone(self) -> bool:
        """Whether no other task requests passes."""
        return not self._slots.others(self.running)

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
        """The number of tokens of a prompt that are cached."""
        return max(self.cache.cached_length(prompt), self._slots.kept.known(prompt))

    def _recall(self, prompt: Sequence[int]) -> list[str]:
        """Restore a stored prefix of a prompt; returns notices."""
        if self.sessions is not None:
            return self.sessions.recall(self.cache.seen(prompt))
        room = min(self.cache.capacity, self._slots.room(self.running))
        return self._slots.kept.recall(prompt, room, drafted=self.shareable_draft is not None)

    def keep(self) -> list[str]:
        """Store its text, if it `keeps` that and conversations are stored, before its caches are
        cleared; returns notices."""
        return self.sessions.keep() if self.sessions is not None and self.keeps else []

    def load_prefix(self, prompt: Sequence[int], notices: list[str], *, reuse: bool = True) -> int:
        """Wait for room for a prompt, then keep, restore or share its cached prefix, and drop the
        rest; returns its length. `notices`: gets sentences for the user."""
        notices += self._recall(prompt) if reuse else self.keep()
        self.keeps = reuse
        if not reuse:
            self.empty()
        known = self.known(prompt) if reuse else 0
        self.wait_for_room(min(len(prompt) + ROOM, self.cache.capacity) - known)
        if not reuse:
            return 0
        own = self.cache.reuse(prompt)
        return own or self._slots.kept.begin(prompt, self.cache, self.shareable_draft)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Context manager in which passes are timed; ends early if the cache is full."""
        # Skipped if paused answers hold the room; a later answer will measure.
        with self._slots.direct(), suppress(CacheFull, Preempted):
            yield

    def empty(self) -> None:
        self.preempt()
        if self.parts.model is not None:
            self.parts.model.forget()
        if self.parts.head is not None:
            self.parts.head.forget()

    def preempt(self) -> None:
        """Free the target's cells; the task has to prefill its text again."""
        self.cache.clear()

    def wait_for_room(self, tokens: int) -> None:
        """Wait until this many tokens fit alongside those of the other tasks."""
        self._slots.wait_for_room(self.running, tokens)


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

    def __init__(self, target: SharedContext | None, draft: SharedContext | None) -> None:
        def of(shared: SharedContext, number: int) -> Context:
            return Context(shared, shared.kept_sequences(number), make_room=self.drop_oldest)

        self._texts: list[_Text] = []
        self._free: list[_Text] = []
        if target is not None:
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


class Slots(SharedScheduler):
    """The slots of a pair, which are `all`: one that owns its caches, or several that share them,
    with a prefix cache.

    `make_model`: creates the draft model over a slot's draft cache; `heads`: for each slot, a
    trained head with its cache, or None; `chunk`, `piece`: as for `SharedScheduler`."""

    def __init__(
        self,
        target: Context | SharedContext,
        draft: Context | SharedContext | None = None,
        make_model: Callable[[Context], DraftModel] | None = None,
        heads: Sequence[TrainedHead | None] = (None,),
        *,
        chunk: int = CHUNK,
        piece: int | None = None,
    ) -> None:
        both = {Wait.TARGET: target, Wait.DRAFT: draft}
        shared = {wait: cache for wait, cache in both.items() if isinstance(cache, SharedContext)}
        super().__init__(shared, chunk=chunk, piece=piece)
        self.kept = PrefixCache(shared.get(Wait.TARGET), shared.get(Wait.DRAFT))
        self.all: list[Slot] = []
        for number, head in enumerate(heads):
            cache = self._part_of(target, Wait.TARGET, number)
            drafts = None if draft is None else self._part_of(draft, Wait.DRAFT, number)
            model = make_model(drafts) if make_model is not None and drafts is not None else None
            self.all.append(Slot(self, cache, Parts(model, head=head), drafts))

    def _part_of(self, cache: Context | SharedContext, wait: Wait, number: int) -> Context:
        """What a slot has of a cache: all, or a part if it is shared."""
        if isinstance(cache, Context):
            return cache
        part = _SharedCache(
            cache,
            cache.answer_sequences(number),
            lambda part: self.decode(self.all[number].running, wait, part),
            lambda: self.chunk(self.all[number].running),
        )
        part.wait_for_room = lambda tokens: self.all[number].wait_for_room(tokens)
        return part

    @property
    def contexts(self) -> list[Context]:
        """The first slot's cache of the target, then all of draft models or heads."""
        drafts = [slot.parts.native_cache for slot in self.all]
        return [self.all[0].cache, *(cache for cache in drafts if cache is not None)]

    def attach_sessions(self, sessions: Sessions, profile: PairProfile) -> None:
        """Set where texts are stored, and the profile of pass costs."""
        if len(self.all) == 1:
            self.all[0].sessions = sessions
        elif sessions.kept is not None:
            sessions.kept.apart = True
            self.kept.stored = sessions.kept
        self.costs = SharedCosts(profile)

    def clear(self) -> int:
        """Empty the caches; returns how many tokens the target's held."""
        sessions = self.all[0].sessions
        if sessions is None:
            return self.kept.clear()
        sessions.leave()
        held = len(self.all[0].cache.tokens)
        self.all[0].empty()
        return held

    def free(self) -> None:
        self.kept.close()
        for context in reversed(self.contexts):  # a head's depends on the target's
            context.close()
        for slot in self.all:  # which refer to this object, and may have large heads
            slot.parts = Parts()

    def make_room(self) -> bool:
        return self.kept.drop_oldest()

    def interrupt(self, task: Task) -> None:
        if len(self.all) > 1:
            super().interrupt(task)
        else:
            for context in self.contexts:
                context.cancel()

    def take(self, task: Task) -> None:
        """Give a task the free slot whose last text shares the longest prefix with its prompt."""
        free = [slot for slot in self.all if slot.task is None]
        slot = max(free, key=lambda slot: shared_prefix(slot.text, task.tokens))
        slot.task, task.slot = task, slot
        for context in self.contexts:
            context.resume()

    def release(self, task: Task) -> None:
        """Free the slot of an ended task; its text goes into the prefix cache if there are
        several."""
        slot: Slot = task.slot
        if len(self.all) > 1:
            slot.text = [*slot.cache.tokens]
            if slot.keeps:
                self.kept.keep(slot.cache, slot.shareable_draft)
            slot.preempt()
            if slot.parts.model is not None:
                slot.parts.model.forget()
        slot.task = task.slot = None
