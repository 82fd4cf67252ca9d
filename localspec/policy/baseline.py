"""The baseline: what a plain pass takes at present, as plain passes alone tell."""

from __future__ import annotations

import math


class Baseline:
    """Mean of the latest plain passes, relative to a cost curve.

    One that is off by more than noise is a hiccup or a change; the next one tells which. A pass
    after one of another size takes longer, as llama.cpp builds its graph anew: pairs of plain
    passes tell by how much.

    Attributes:
        now: seconds of a plain pass ÷ those of the curve.
        noise: mean distance of a pass from that, as a logarithm.
    """

    RATE, FIRST_RATE = 0.15, 0.5
    NOISE, LOUDEST, NOISE_RATE = 0.03, 0.2, 0.1
    BEYOND, LEAST = 3.0, 0.06
    """Times the noise that a pass has to be off to be strange, and how far at least."""
    PAIR_RATE, PAIRS, MOST = 0.02, 6, 0.1
    """Of pairs: weight of one after many, count of "no longer" at first, most that is believed."""
    ENOUGH = 2  # pairs that are asked for where they do not come by themselves

    __slots__ = ("_first", "_longer", "_pairs", "_passes", "_strange", "noise", "now")

    def __init__(self, now: float = 1.0) -> None:
        self.now = now
        self.noise = self.NOISE
        self._passes = self._pairs = 0
        self._strange = 0.0  # of a first strange pass, how far it was off, as a logarithm
        self._longer = 0.0  # what passes behind one of another size take longer, as a logarithm
        self._first: float | None = None  # the latest pass, where it was the first of a pair

    @property
    def strange(self) -> bool:
        """Whether the latest pass was off, and the next one has to tell why."""
        return self._strange != 0.0

    @property
    def open(self) -> bool:
        """Whether another plain pass is needed, to understand the latest one."""
        return self.strange or (self._first is not None and self._pairs < self.ENOUGH)

    def interrupt(self) -> None:
        """A pass over several tokens came: the latest plain one is no first of a pair."""
        self._first = None

    def observe(self, relative: float, *, alike: bool = True) -> float:
        """Learn from a plain pass that took so many times what the curve says; returns the same
        without what only passes after drafts take. `alike`: whether the pass before it was a plain
        one."""
        first, self._first = self._first, None if alike else relative
        if first is not None and alike:
            self._pairs += 1
            off = max(-self.MOST, min(self.MOST, math.log(first / relative)))
            rate = max(self.PAIR_RATE, 1.0 / (self._pairs + self.PAIRS))
            self._longer += rate * (off - self._longer)
        if not alike:
            relative *= math.exp(-max(0.0, self._longer))
        off, strange = math.log(relative / self.now), max(self.LEAST, self.BEYOND * self.noise)
        before, self._strange = self._strange, 0.0
        self._passes += 1
        if off * before > 0.0 and abs(off) > strange:
            self.now *= math.exp((before + off) / 2.0)
            return relative
        self.noise += self.NOISE_RATE * (min(abs(off), 2.0 * strange) - self.noise)
        self.noise = min(self.noise, self.LOUDEST)
        if abs(off) > strange:
            self._strange = off
        else:
            self.now += max(self.RATE, self.FIRST_RATE / self._passes) * (relative - self.now)
        return relative
