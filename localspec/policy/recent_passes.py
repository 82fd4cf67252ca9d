"""What passes cost at present, in undisturbed ones: the latest passes, and those of a trial."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from localspec.policy.usual_times import UsualTimes

WINDOW, ENOUGH, LONG = 8, 4, 0.5
"""Passes that say how it goes now; as few as ENOUGH say it, or two that took LONG seconds."""
SHORT = 0.3
"""Of the longest of the latest passes: shorter ones of another model do not tell how it goes."""

Timed = tuple[float, float]
"""Seconds of a pass, and what such a one takes undisturbed."""


class RecentPasses:
    """The latest passes on one count of threads."""

    def __init__(self) -> None:
        self._window: deque[Timed] = deque(maxlen=WINDOW)
        self._kinds: deque[tuple[str, int, int]] = deque(maxlen=WINDOW)

    def add(self, kind: tuple[str, int, int], seconds: float, usual: float | None) -> None:
        """Another one: whose it was, its tokens and those before them; what it took, and what such
        a one takes undisturbed, if that is known."""
        known = seconds if usual is None else usual
        if self._window:
            longest = max(range(len(self._window)), key=lambda at: self._window[at][1])
            if kind[0] != self._kinds[longest][0] and known < SHORT * self._window[longest][1]:
                return
        self._window.append((seconds, known))
        self._kinds.append(kind)

    def clear(self) -> None:
        """They say nothing of what comes."""
        self._window.clear()
        self._kinds.clear()

    @property
    def mean(self) -> float:
        """Seconds of one."""
        return sum(seconds for seconds, _ in self._window) / len(self._window)

    def slowness(self) -> float | None:
        """Their seconds ÷ what they usually take; None while too few are known."""
        if len(self._window) >= ENOUGH:
            return _without_worst(self._window)  # a single hiccup is no busy machine
        paid = sum(seconds for seconds, _ in self._window)
        return _ratio(self._window) if len(self._window) >= 2 and paid >= LONG else None

    def slowness_of_last(self, count: int) -> float:
        """The same of the last few, all of them; 1 where there are none."""
        return _ratio(list(self._window)[-count:]) if self._window else 1.0

    def price(self, threads: int, usual: UsualTimes, count: int) -> float:
        """What the last few cost, in undisturbed ones on as many threads, as those are known by
        now: when they ran, little may have been known."""
        passes = list(zip(self._window, self._kinds, strict=True))[-count:]
        return _ratio([(s, usual.seconds(threads, *kind) or s) for (s, _), kind in passes])


@dataclass(slots=True)
class ThreadTrial:
    """A few passes on another count of threads.

    Attributes:
        base: the count before.
        before: what its passes cost, in its own undisturbed ones.
        earlier: why that count.
        others: cores that other processes used when it began.
        lasted: seconds on it.
        look: whether it is tried on an idle machine, to know.
        passes: by whose they are.
        unknown: passes of kinds that never ran on the count before.
    """

    base: int
    before: float
    earlier: str
    others: float | None
    lasted: float
    look: bool
    passes: dict[str, list[Timed]] = field(default_factory=dict)
    unknown: int = 0

    @property
    def telling(self) -> list[Timed]:
        """Those of the model that most of the time goes by in: short ones, of a draft model beside
        the target's, may take as long on one thread as on two."""
        each = self.passes.values()
        return max(each, key=lambda passes: sum(usual for _, usual in passes), default=[])

    @property
    def price(self) -> float:
        """Of these, in undisturbed ones on the count before; without the worst of many."""
        passes = self.telling
        return _without_worst(passes) if len(passes) >= ENOUGH else _ratio(passes)


def _ratio(passes: Sequence[Timed] | deque[Timed]) -> float:
    return sum(seconds for seconds, _ in passes) / sum(usual for _, usual in passes)


def _without_worst(passes: Sequence[Timed] | deque[Timed]) -> float:
    return _ratio(sorted(passes, key=lambda one: one[0] / one[1])[:-1])
