"""The baseline: what a plain pass takes at present, as plain passes alone tell."""

from __future__ import annotations

import math


class Baseline:
    """Mean of the latest plain passes, relative to a cost curve.

    One that is off by more than noise is a hiccup or a change; the next one tells which.

    Attributes:
        now: seconds of a plain pass ÷ those of the curve.
        noise: mean distance of a pass from that, as a logarithm.
        fell: whether the latest pass told of a change, that plain passes take less now.
    """

    RATE, FIRST_RATE = 0.15, 0.5
    NOISE, LOUDEST, NOISE_RATE = 0.03, 0.2, 0.1
    BEYOND, LEAST = 3.0, 0.06
    """Times the noise that a pass has to be off to be strange, and how far at least."""

    __slots__ = ("_passes", "_strange", "fell", "noise", "now")

    def __init__(self, now: float = 1.0) -> None:
        self.now = now
        self.noise = self.NOISE
        self.fell = False
        self._passes = 0
        self._strange = 0.0  # of a first strange pass, how far it was off, as a logarithm

    @property
    def open(self) -> bool:
        """Whether another plain pass is needed, to understand the latest one."""
        return self._strange != 0.0

    def observe(self, relative: float) -> None:
        """Learn from a plain pass that took so many times what the curve says."""
        off, strange = math.log(relative / self.now), max(self.LEAST, self.BEYOND * self.noise)
        before, self._strange, self.fell = self._strange, 0.0, False
        self._passes += 1
        if off * before > 0.0 and abs(off) > strange:
            self.fell = off < 0.0
            self.now *= math.exp((before + off) / 2.0)
            return
        self.noise += self.NOISE_RATE * (min(abs(off), 2.0 * strange) - self.noise)
        self.noise = min(self.noise, self.LOUDEST)
        if abs(off) > strange:
            self._strange = off
        else:
            self.now += max(self.RATE, self.FIRST_RATE / self._passes) * (relative - self.now)
