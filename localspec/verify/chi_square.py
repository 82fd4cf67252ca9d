"""Counts against probabilities: Pearson's chi-square, pooled over many places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 5.0
"""Least expected count; rarer outcomes are merged (Cochran 1954)."""


@dataclass(frozen=True, slots=True)
class Bins:
    """One multinomial experiment, its rare outcomes merged."""

    counts: tuple[int, ...]
    expected: tuple[float, ...]

    @property
    def statistic(self) -> float:
        return sum((n - e) ** 2 / e for n, e in zip(self.counts, self.expected, strict=True))

    @property
    def freedom(self) -> int:
        return len(self.counts) - 1


def bins(outcomes: Sequence[tuple[int, float]]) -> Bins:
    """Bins of (count, probability); those below LEAST are merged."""
    samples = sum(count for count, _ in outcomes)
    found = sorted(((p * samples, count) for count, p in outcomes), reverse=True)
    kept = [pair for pair in found if pair[0] >= LEAST]
    rare = found[len(kept) :]
    if rare:
        kept.append((math.fsum(e for e, _ in rare), sum(n for _, n in rare)))
        if kept[-1][0] < LEAST and len(kept) > 1:
            (one, n), (other, m) = kept.pop(), kept.pop()
            kept.append((one + other, n + m))
    kept = [pair for pair in kept if pair[0] > 0.0]
    return Bins(tuple(n for _, n in kept), tuple(e for e, _ in kept))


@dataclass(frozen=True, slots=True)
class Pooled:
    """Independent experiments together; `chance` is the p-value."""

    samples: int
    statistic: float
    freedom: int
    chance: float


def pooled(experiments: Sequence[Bins]) -> Pooled:
    statistic = math.fsum(one.statistic for one in experiments)
    freedom = sum(one.freedom for one in experiments)
    samples = sum(sum(one.counts) for one in experiments)
    return Pooled(samples, statistic, freedom, tail(statistic, freedom) if freedom else 1.0)


def tail(statistic: float, freedom: int) -> float:
    """P(χ² ≥ statistic): Wilson & Hilferty 1931, the cube root is nearly normal."""
    if statistic <= 0.0:
        return 1.0
    spread = 2.0 / (9.0 * freedom)
    z = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))
