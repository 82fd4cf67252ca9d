"""Counts against probabilities: Pearson's chi-square over many places, and what it would see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

LEAST = 5.0
"""Times that an outcome has to be expected; rarer ones are taken together (Cochran 1954)."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Bins:
    """One multinomial experiment, its rare outcomes merged.

    Attributes:
        counts, expected: by bin; both sum to the number of samples.
    """

    counts: tuple[int, ...]
    expected: tuple[float, ...]

    @property
    def statistic(self) -> float:
        """Pearson's."""
        return sum((n - e) ** 2 / e for n, e in zip(self.counts, self.expected, strict=True))

    @property
    def freedom(self) -> int:
        """Degrees of freedom."""
        return len(self.counts) - 1

    @property
    def per_bias(self) -> float:
        """Noncentrality ÷ δ², where a share δ of the answers says the next likeliest outcome
        instead of the likeliest; 0 with a single bin."""
        if self.freedom < 1:
            return 0.0
        samples = sum(self.expected)
        most, next_most = sorted(self.expected)[-1:-3:-1]
        return samples * samples * (1.0 / most + 1.0 / next_most)


def bins(outcomes: Sequence[tuple[int, float]]) -> Bins:
    """Bins of outcomes, those expected fewer than LEAST times merged into one.

    Args:
        outcomes: of each, how often it was seen, and its probability; these sum to 1.
    """
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
    """Independent experiments taken together.

    Attributes:
        samples, statistic, freedom: summed over them.
        chance: of a statistic at least as large if nothing is wrong (p-value).
        bias: the least share of answers which, moved from the likeliest outcome of every place to
            the next likeliest, would have been seen with a probability of POWER; None where no
            sample of this size sees any, or only one larger than 1.
    """

    samples: int
    statistic: float
    freedom: int
    chance: float
    bias: float | None


POWER = 0.9


def pooled(experiments: Sequence[Bins], reject: float) -> Pooled:
    """Their statistics added up.

    Args:
        reject: p-value below which the test fails; decides what bias it sees.
    """
    statistic = math.fsum(one.statistic for one in experiments)
    freedom = sum(one.freedom for one in experiments)
    samples = sum(sum(one.counts) for one in experiments)
    if freedom < 1:
        return Pooled(samples, statistic, freedom, 1.0, None)
    shift = math.fsum(one.per_bias for one in experiments)
    bias = math.sqrt(noncentrality(freedom, reject, POWER) / shift) if shift else None
    if bias is not None and bias > 1.0:
        bias = None
    return Pooled(samples, statistic, freedom, tail(statistic, freedom), bias)


def tail(statistic: float, freedom: int) -> float:
    """P(χ² ≥ statistic): Wilson & Hilferty 1931, the cube root is nearly normal."""
    if statistic <= 0.0:
        return 1.0
    spread = 2.0 / (9.0 * freedom)
    z = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def critical(freedom: int, reject: float) -> float:
    """The statistic whose `tail` is `reject`."""
    spread = 2.0 / (9.0 * freedom)
    z = _NORMAL.inv_cdf(1.0 - reject)
    return float(freedom * max(0.0, 1.0 - spread + z * math.sqrt(spread)) ** 3)


def power(freedom: int, noncentral: float, reject: float) -> float:
    """P(noncentral χ² ≥ critical value): Sankaran 1963, "Approximations to the non-central
    chi-square distribution", Biometrika 50, the approximation z₃."""
    k, n = float(freedom), noncentral
    h = 1.0 - 2.0 * (k + n) * (k + 3.0 * n) / (3.0 * (k + 2.0 * n) ** 2)
    p = (k + 2.0 * n) / (k + n) ** 2
    m = (h - 1.0) * (1.0 - 3.0 * h)
    mean = 1.0 + h * p * (h - 1.0 - 0.5 * (2.0 - h) * m * p)
    spread = h * math.sqrt(2.0 * p) * (1.0 + 0.5 * m * p)
    z = ((critical(freedom, reject) / (k + n)) ** h - mean) / spread
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def noncentrality(freedom: int, reject: float, wanted: float) -> float:
    """The noncentrality at which `power` is `wanted`, by halves."""
    low, high = 0.0, 1.0
    while power(freedom, high, reject) < wanted:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = 0.5 * (low + high)
        if power(freedom, middle, reject) < wanted:
            low = middle
        else:
            high = middle
    return high
