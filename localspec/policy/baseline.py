"""The baseline: the current time of a plain pass, measured by plain passes only."""

import math


class Baseline:
    """Running mean of plain passes, relative to a cost curve.

    An outlier is an interruption or a lasting change; the next pass shows which.

    Attributes:
        now: seconds of a plain pass ÷ those of the curve.
        noise: mean absolute deviation of passes from `now`, as a logarithm.
    """

    RATE, FIRST_RATE = 0.15, 0.5
    NOISE, LOUDEST, NOISE_RATE = 0.03, 0.2, 0.1
    BEYOND, LEAST = 3.0, 0.06
    """Threshold for outliers: as a multiple of the noise, and its minimum."""

    __slots__ = ("_passes", "_strange", "noise", "now")

    def __init__(self, now: float = 1.0) -> None:
        self.now = now
        self.noise = self.NOISE
        self._passes = 0
        self._strange = 0.0  # deviation of an unexplained outlier, as a logarithm

    @property
    def outlier(self) -> bool:
        """Whether the latest pass was an outlier that the next one has to explain."""
        return self._strange != 0.0

    def observe(self, relative: float) -> None:
        """Learn from a plain pass that took `relative` × the curve's time."""
        off, threshold = math.log(relative / self.now), max(self.LEAST, self.BEYOND * self.noise)
        before, self._strange = self._strange, 0.0
        self._passes += 1
        if off * before > 0.0 and abs(off) > threshold:
            self.now *= math.exp((before + off) / 2.0)
            return
        self.noise += self.NOISE_RATE * (min(abs(off), 2.0 * threshold) - self.noise)
        self.noise = min(self.noise, self.LOUDEST)
        if abs(off) > threshold:
            self._strange = off
        else:
            self.now += max(self.RATE, self.FIRST_RATE / self._passes) * (relative - self.now)
