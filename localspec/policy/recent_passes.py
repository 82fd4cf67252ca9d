"""What passes cost at present, in undisturbed ones: the latest passes, and those of a trial."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from localspec.policy.usual_times import UsualTimes

WINDOW, ENOUGH, LONG = 8, 4, 0.5
"""Passes that say how it goes now; as few as ENOUGH say it, or two that took LONG seconds."""
SHORT = 0.3
"""Of the longest of the latest passes: shorter ones of another model do not tell how it goes."""


class RecentPasses:
    """The latest passes on one count of threads."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, float]] = deque(maxlen=WINDOW)
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
        """Their seconds ÷ what they usually take; None while too few are known.

        Without the worst one: a single hiccup is no busy machine.
        """
        count, paid, usual, worst = len(self._window), 0.0, 0.0, (0.0, 1.0)
        for seconds, known in self._window:
            paid, usual = paid + seconds, usual + known
            if seconds * worst[1] > worst[0] * known:
                worst = seconds, known
        if count >= ENOUGH:
            return (paid - worst[0]) / (usual - worst[1])
        return paid / usual if count >= 2 and paid >= LONG else None

    def slowness_of_last(self, count: int) -> float:
        """The same of the last few, all of them; 1 where there are none."""
        return _ratio(list(self._window)[-count:]) if self._window else 1.0

    def price(self, threads: int, usual: UsualTimes, count: int) -> float:
        """What the last few cost, in undisturbed ones on as many threads, as those are known by
        now: when they ran, little may have been known."""
        paid = undisturbed = 0.0
        for (seconds, _), kind in list(zip(self._window, self._kinds, strict=True))[-count:]:
            paid += seconds
            undisturbed += usual.seconds(threads, *kind) or seconds
        return paid / undisturbed


class ThreadTrial:
    """A few passes on another count of threads.

    Args:
        base: the count before.
        before: what its passes cost, in its own undisturbed ones.
        earlier: why that count.
        others: cores that other processes used when it began.
        lasted: seconds on it.
        stay: what all of its passes in that time cost, in undisturbed ones.
        look: it is tried on an idle machine, to know.
    """

    def __init__(
        self,
        base: int,
        before: float,
        earlier: str,
        others: float | None,
        lasted: float,
        stay: float,
        look: bool,
    ) -> None:
        self.base, self.before, self.lasted, self.stay = base, before, lasted, stay
        self.earlier, self.others, self.look = earlier, others, look
        self.passes: dict[str, list[tuple[float, float]]] = {}
        self.unknown = 0

    def add(self, user: str, seconds: float, usual: float) -> None:
        self.passes.setdefault(user, []).append((seconds, usual))

    @property
    def telling(self) -> list[tuple[float, float]]:
        """Those of the model that most of the time goes by in: short ones, of a draft model beside
        the target's, may take as long on one thread as on two."""
        each = self.passes.values()
        return max(each, key=lambda passes: sum(usual for _, usual in passes), default=[])

    @property
    def price(self) -> float:
        """Of these, in undisturbed ones on the count before; without the worst of many."""
        passes = sorted(self.telling, key=lambda one: one[0] / one[1])
        return _ratio(passes[:-1] if len(passes) >= ENOUGH else passes)


def _ratio(passes: Sequence[tuple[float, float]]) -> float:
    return sum(seconds for seconds, _ in passes) / sum(usual for _, usual in passes)
