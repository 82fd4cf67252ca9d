"""The baseline: the current time of a plain pass, measured by plain passes only."""

import math


class Baseline:
    """Running mean of plain passes, relative to a cost curve.

    An outlier is an interruption or a lasting change; the next pass shows which. A pass after one
    of another size takes longer, because llama.cpp rebuilds its graph. The difference is measured
    on pairs of consecutive plain passes.

    Attributes:
        now: seconds of a plain pass ÷ those of the curve.
        noise: mean absolute deviation of passes from `now`, as a logarithm.
    """

    RATE, FIRST_RATE = 0.15, 0.5
    NOISE, LOUDEST, NOISE_RATE = 0.03, 0.2, 0.1
    BEYOND, LEAST = 3.0, 0.06
    """Threshold for outliers: as a multiple of the noise, and its minimum."""
    PAIR_RATE, PAIRS, MOST = 0.02, 6, 0.1
    """Pairs of passes: minimum weight, prior pairs without a difference, largest difference."""
    ENOUGH = 2  # pairs that are requested

    __slots__ = ("_first", "_longer", "_pairs", "_passes", "_strange", "noise", "now")

    def __init__(self, now: float = 1.0) -> None:
        self.now = now
        self.noise = self.NOISE
        self._passes = self._pairs = 0
        self._strange = 0.0  # deviation of an unexplained outlier, as a logarithm
        self._longer = 0.0  # extra time after a pass of another size, as a logarithm
        self._first: float | None = None  # the latest pass, if it was the first of a pair

    @property
    def outlier(self) -> bool:
        """Whether the latest pass was an outlier that the next one has to explain."""
        return self._strange != 0.0

    @property
    def open(self) -> bool:
        """Whether another plain pass is needed to interpret the latest one."""
        return self.outlier or (self._first is not None and self._pairs < self.ENOUGH)

    def interrupt(self) -> None:
        """Record a pass over several tokens: the latest plain one cannot begin a pair."""
        self._first = None

    def observe(self, relative: float, *, alike: bool = True) -> float:
        """Learn from a plain pass that took `relative` × the curve's time.

        Returns `relative` without the extra time after a pass of another size. `alike`: whether
        the pass before was a plain one."""
        first, self._first = self._first, None if alike else relative
        if first is not None and alike:
            self._pairs += 1
            off = max(-self.MOST, min(self.MOST, math.log(first / relative)))
            rate = max(self.PAIR_RATE, 1.0 / (self._pairs + self.PAIRS))
            self._longer += rate * (off - self._longer)
        if not alike:
            relative *= math.exp(-max(0.0, self._longer))
        off, threshold = math.log(relative / self.now), max(self.LEAST, self.BEYOND * self.noise)
        before, self._strange = self._strange, 0.0
        self._passes += 1
        if off * before > 0.0 and abs(off) > threshold:
            self.now *= math.exp((before + off) / 2.0)
            return relative
        self.noise += self.NOISE_RATE * (min(abs(off), 2.0 * threshold) - self.noise)
        self.noise = min(self.noise, self.LOUDEST)
        if abs(off) > threshold:
            self._strange = off
        else:
            self.now += max(self.RATE, self.FIRST_RATE / self._passes) * (relative - self.now)
        return relative
