"""Slots: the caches and sources with which an answer is generated."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from localspec.decoding.interfaces import Limits
from localspec.drafters.registry import Parts
from localspec.llama.context import Context
from localspec.llama.target import LlamaTarget
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.scheduling.scheduler import Scheduler
from localspec.scheduling.task import Task
from localspec.sessions.sessions import Sessions


class Slot:
    """Room for one task: the target with its cache, and the parts of its drafters.

    Attributes:
        limits: of its token trees.
        task: the current one, where there are several slots.
    """

    sessions: Sessions | None = None
    task: Task | None = None

    def __init__(self, cache: Context, parts: Parts) -> None:
        self.cache, self.parts = cache, parts
        self.target = LlamaTarget(cache)
        self.limits = Limits(cache.capacity, cache.max_draft, cache.max_leaves)

    @property
    def costs(self) -> CostCurve | None:
        """Cost curve of its task in shared passes; None for that of the target."""
        return None

    @property
    def alone(self) -> bool:
        """Whether no other task requests passes."""
        return True

    def known(self, prompt: Sequence[int]) -> int:
        """The number of tokens of a prompt that are cached."""
        return self.target.cached_length(prompt)

    def recall(self, prompt: Sequence[int]) -> list[str]:
        """Restore a prefix of a prompt from disk; returns notices."""
        return [] if self.sessions is None else self.sessions.recall(self.target.seen(prompt))

    def load_prefix(self, prompt: Sequence[int], *, reuse: bool = True) -> int:
        """Keep the cached prefix of a prompt, and drop the rest; returns its length."""
        if not reuse:
            self.empty()
        return self.target.reuse(prompt)

    def measuring(self) -> AbstractContextManager[None]:
        """Context manager in which passes are timed; ends early if the cache is full."""
        return nullcontext()

    def empty(self) -> None:
        """Clear all its caches."""
        self.cache.clear()
        if self.parts.model is not None:
            self.parts.model.cache.truncate(0)
        if self.parts.head is not None:
            self.parts.head.forget()


class Slots:
    """The slots of an engine and the scheduler of their tasks. Here there is a single one, whose
    caches keep their text for the next task."""

    def __init__(self, cache: Context, parts: Parts) -> None:
        self.all: Sequence[Slot] = [Slot(cache, parts)]
        self.scheduler = Scheduler(1, take=self._take, interrupt=self._interrupt)

    @property
    def contexts(self) -> list[Context]:
        """The first slot's cache of the target, then all of draft models or heads."""
        drafts = [slot.parts.native_cache for slot in self.all]
        return [self.all[0].cache, *(cache for cache in drafts if cache is not None)]

    def attach_sessions(self, sessions: Sessions, profile: PairProfile) -> None:
        """Set where texts are stored, and the profile of pass costs."""
        self.all[0].sessions = sessions

    def clear(self) -> int:
        """Empty the caches; returns how many tokens the target's held."""
        (slot,) = self.all
        held = len(slot.cache.tokens)
        if slot.sessions is not None:
            slot.sessions.leave()
        slot.empty()
        return held

    def close(self) -> None:
        for context in reversed(self.contexts):  # a head's depends on the target's
            context.close()

    def _take(self, task: Task) -> None:
        task.slot = self.all[0]
        for context in self.contexts:
            context.resume()

    def _interrupt(self, task: Task) -> None:
        for context in self.contexts:
            context.cancel()
