"""Where an answer is generated: its caches, and what drafts for it."""

from __future__ import annotations

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


class Seat:
    """A place for one task: the target's cache and its passes, and what drafts are made of.

    Attributes:
        limits: of its trees.
        task: who sits here, where there are several.
    """

    sessions: Sessions | None = None
    task: Task | None = None

    def __init__(self, cache: Context, parts: Parts) -> None:
        self.cache, self.parts = cache, parts
        self.target = LlamaTarget(cache)
        self.limits = Limits(cache.capacity, cache.max_draft, cache.max_leaves)

    @property
    def costs(self) -> CostCurve | None:
        """What passes of the target cost its task; None for what they take."""
        return None

    @property
    def alone(self) -> bool:
        """Whether nobody else asks for passes."""
        return True

    def known(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not be read."""
        return self.target.cached_length(prompt)

    def recall(self, prompt: Sequence[int]) -> list[str]:
        """Take up what the disk has of a prompt; returns notices."""
        return [] if self.sessions is None else self.sessions.recall(self.target.seen(prompt))

    def take_up(self, prompt: Sequence[int], *, reuse: bool = True) -> int:
        """Keep what is known of a prompt, and drop the rest; returns how many tokens that is."""
        if not reuse:
            self.empty()
        return self.target.reuse(prompt)

    def measuring(self) -> AbstractContextManager[None]:
        """Entered to measure passes, which end early where there is no room."""
        return nullcontext()

    def empty(self) -> None:
        """Let go of everything that it holds."""
        self.cache.clear()
        if self.parts.model is not None:
            self.parts.model.cache.truncate(0)
        if self.parts.head is not None:
            self.parts.head.forget()


class Seats:
    """The seat `all` of an engine that generates one answer at a time, and the scheduler of its
    tasks. Its caches keep their text for the next one."""

    def __init__(self, cache: Context, parts: Parts) -> None:
        self.all: Sequence[Seat] = [Seat(cache, parts)]
        self.scheduler = Scheduler(1, take=self._take, interrupt=self._interrupt)

    @property
    def contexts(self) -> list[Context]:
        """The target's cache, and that of the draft model or head, if there is one; of the first
        seat where there are several."""
        first = self.all[0]
        cache = first.parts.native_cache
        return [first.cache] if cache is None else [first.cache, cache]

    def remember(self, sessions: Sessions, profile: PairProfile) -> None:
        """Where texts go and come from, and what passes cost."""
        self.all[0].sessions = sessions

    def clear(self) -> int:
        """Empty the caches; returns how many tokens the target's held."""
        (seat,) = self.all
        held = len(seat.cache.tokens)
        if seat.sessions is not None:
            seat.sessions.leave()
        seat.empty()
        return held

    def close(self) -> None:
        model = self.all[0].parts.model
        if model is not None and model.reader is not None:
            model.reader.close()
        for context in reversed(self.contexts):  # a head's rests on the target's
            context.close()

    def _take(self, task: Task) -> None:
        task.seat = self.all[0]
        for context in self.contexts:
            context.resume()

    def _interrupt(self, task: Task) -> None:
        for context in self.contexts:
            context.cancel()
