"""Carries out what the controller of threads says: on the models' passes, and in the profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import process_time
from typing import Protocol

from localspec.policy.profile import PairProfile
from localspec.policy.threads import ThreadController

TARGET, DRAFT = "target", "draft"
TOGETHER, SECONDS = 8, 0.2
"""The controller hears of so many passes of the target at once, or of those of so many seconds."""
TELLING = 0.1
"""Seconds of passes that tell how much of the cores they had."""
STUMBLED = 1.3
"""It hears at once of a pass that took so many times what the latest such pass did."""


class Threaded(Protocol):
    """Passes whose threads can be set; `localspec.llama.context.Context` is one."""

    def set_threads(self, count: int) -> None: ...


class ThreadUse:
    """Who runs on how many threads. A count moves between two steps or two chunks of a prompt.

    Args:
        controller: decides; one with a single count decides nothing.
        passes: by TARGET and DRAFT, those whose threads follow it.
        fixed: counts of the others, by the same names.
        profile: whose curves are to be those of the present counts.
        processor: tells the processor seconds of this process, all of its threads together.
    """

    def __init__(
        self,
        controller: ThreadController,
        passes: Mapping[str, Threaded],
        profile: PairProfile,
        *,
        fixed: Mapping[str, int],
        processor: Callable[[], float] = process_time,
    ) -> None:
        self.controller = controller
        self._processor = processor
        self._passes, self._fixed, self._profile = passes, fixed, profile
        self._measuring = False
        # Not told yet: whose, over how many tokens, behind how many, how long.
        self._passed: list[tuple[str, int, int, float]] = []
        self._targets, self._seconds = 0, 0.0  # of these: passes of the target, and of all
        self._before = processor()
        self._latest: dict[int, float] = {}  # seconds of passes of the target, by their tokens
        self._applied = 0
        self._apply()

    @property
    def why(self) -> str:
        """A clause: how many threads there are at present, and why."""
        control = self.controller
        if len(control.counts) == 1:
            return f"{control.count}, {control.reason}"
        return f"{control.count} of {control.counts[-1]}: {control.reason}"

    @property
    def settled(self) -> bool:
        """Whether the present count is worth measuring curves for."""
        return len(self.controller.counts) == 1 or self.controller.steady

    def begin(self) -> None:
        """An answer begins."""
        self._forget()
        self.controller.begin()
        self._apply()

    def between(self) -> None:
        """A step is over, and the next not planned."""
        if self.controller.count != self._applied:
            self._apply()

    def watch(self, user: str) -> _Watch:
        """For a context, whose passes are then taken into account."""
        return _Watch(self, user)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Meanwhile passes are measured: the count stays, and they say nothing of the present."""
        self._measuring = True
        try:
            yield
        finally:
            self._measuring = False

    def chunk(self, user: str, context: int, most: int) -> int:
        if self._measuring:
            return most
        self._observe()
        self.between()
        return self.controller.chunk(user, context, most)

    def passed(self, user: str, tokens: int, context: int, seconds: float) -> None:
        if self._measuring or len(self.controller.counts) == 1:
            return
        self._passed.append((user, tokens, context, seconds))
        self._seconds += seconds
        if user != TARGET:
            return
        self._targets += 1
        latest, self._latest[tokens] = self._latest.get(tokens, 0.0), seconds
        if (
            self._targets == TOGETHER
            or self._seconds >= SECONDS
            or seconds > STUMBLED * latest
            or self.controller.trying
        ):
            self._observe()

    def _observe(self) -> None:
        """Tell the controller of the passes since it was told last, all at once."""
        # A count that was decided on since the last step is not what these ran on.
        if self._passed and self.controller.count == self._applied:
            *earlier, latest = self._passed
            for one in earlier:
                self.controller.learn(*one)
            # With what it did between passes: rather too much than too little.
            had = self._processor() - self._before
            cores = had / self._seconds if self._seconds >= TELLING else None
            self.controller.observe(*latest, cores)
        self._forget()

    def _forget(self) -> None:
        self._passed.clear()
        self._targets, self._seconds = 0, 0.0
        self._before = self._processor()

    def _apply(self) -> None:
        count = self._applied = self.controller.count
        for passes in self._passes.values():
            passes.set_threads(count)
        target, draft = self._fixed.get(TARGET, count), self._fixed.get(DRAFT, count)
        self._profile.use_threads(target, draft, self.controller.price)


class _Watch:
    """The passes of one model."""

    def __init__(self, use: ThreadUse, user: str) -> None:
        self.chunk = partial(use.chunk, user)
        self.passed = partial(use.passed, user)
