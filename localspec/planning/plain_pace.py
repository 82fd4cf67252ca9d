"""What a plain pass takes at present, as plain passes alone tell: what drafting is measured by."""

from __future__ import annotations

import math


class PlainPace:
    """How much slower than a curve says plain passes are.

    Noise must not make drafts look better or worse than they are, so this is the mean of the latest
    passes, the slow ones and the fast ones alike. A pass that is off by more than noise is a hiccup
    or a change of the machine; the next one tells which, and a change is believed at once.

    Attributes:
        now: seconds of a plain pass ÷ those of the curve.
        noise: mean distance of a pass from that, as a logarithm.
        open: whether the next plain pass has to tell whether the latest one was a hiccup.
        fell: whether the latest one told of a change, that plain passes take less now.
    """

    RATE, FIRST_RATE = 0.15, 0.5
    NOISE, LOUDEST, NOISE_RATE = 0.03, 0.2, 0.1
    BEYOND, LEAST = 3.0, 0.06
    """Times the noise that a pass has to be off to be strange, and how far at least."""

    __slots__ = ("_first", "_passes", "fell", "noise", "now")

    def __init__(self, now: float = 1.0) -> None:
        self.now = now
        self.noise = self.NOISE
        self.fell = False
        self._passes = 0
        self._first = 0.0  # of two strange passes, how far it was off, as a logarithm

    @property
    def open(self) -> bool:
        return self._first != 0.0

    def observe(self, relative: float) -> None:
        """Learn from a plain pass that took so many times what the curve says."""
        off, first = math.log(relative / self.now), self._first
        strange = max(self.LEAST, self.BEYOND * self.noise)
        self._passes += 1
        self._first, self.fell = 0.0, False
        if off * first > 0.0 and abs(off) > strange:
            self.fell = off < 0.0
            self.now *= math.exp((first + off) / 2.0)
            return
        self.noise += self.NOISE_RATE * (min(abs(off), 2.0 * strange) - self.noise)
        self.noise = min(self.noise, self.LOUDEST)
        if abs(off) > strange:
            self._first = off
            return
        rate = max(self.RATE, self.FIRST_RATE / self._passes)
        self.now += rate * (relative - self.now)
