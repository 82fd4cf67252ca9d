"""Counts against probabilities: Pearson's chi-square over places, and the bias it would see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

LEAST = 5.0
"""Times that an outcome has to be expected; rarer ones are taken together (Cochran 1954)."""
POWER = 0.9
"""Probability with which a bias has to be seen."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Bins:
    """One multinomial experiment, its rare outcomes merged: counts, and expected counts."""

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
        """Noncentrality ÷ δ², where a share δ of the answers has the next likeliest outcome instead
        of the likeliest; 0 with a single bin."""
        if self.freedom < 1:
            return 0.0
        samples = sum(self.expected)
        most, next_most = sorted(self.expected)[-1:-3:-1]
        return samples * samples * (1.0 / most + 1.0 / next_most)


def bins(outcomes: Sequence[tuple[int, float]]) -> Bins:
    """Bins of (count, probability), those expected fewer than LEAST times merged into one."""
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
        bias: the least share of answers, moved from the likeliest outcome to the next, that would
            be seen with a probability of about POWER; None where none up to 1 would be.
    """

    samples: int
    statistic: float
    freedom: int
    chance: float
    bias: float | None


def pooled(experiments: Sequence[Bins], reject: float) -> Pooled:
    """Their statistics added up; `reject` is the p-value below which the test fails."""
    statistic = math.fsum(one.statistic for one in experiments)
    freedom = sum(one.freedom for one in experiments)
    samples = sum(sum(one.counts) for one in experiments)
    if freedom < 1:
        return Pooled(samples, statistic, freedom, 1.0, None)
    shift = math.fsum(one.per_bias for one in experiments)
    bias = math.sqrt(noncentrality(freedom, reject) / shift) if shift else math.inf
    chance = tail(statistic, freedom)
    return Pooled(samples, statistic, freedom, chance, bias if bias <= 1.0 else None)


def tail(statistic: float, freedom: int) -> float:
    """P(χ² ≥ statistic): Wilson & Hilferty 1931, the cube root is nearly normal."""
    if statistic <= 0.0:
        return 1.0
    spread = 2.0 / (9.0 * freedom)
    z = ((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def noncentrality(freedom: int, reject: float) -> float:
    """About the noncentrality at which a test is failed with a probability of POWER: mean and
    variance of χ² are k + λ and 2k + 4λ, taken as normal."""
    z, power = _NORMAL.inv_cdf(1.0 - reject), _NORMAL.inv_cdf(POWER)
    spread = 2.0 / (9.0 * freedom)
    critical = freedom * (1.0 - spread + z * math.sqrt(spread)) ** 3
    # critical = k + λ − power · √(2k + 4λ), solved for √(2k + 4λ)
    root = 2.0 * power + math.sqrt(4.0 * power**2 + 4.0 * critical - 2.0 * freedom)
    return (root**2 - 2.0 * freedom) / 4.0
