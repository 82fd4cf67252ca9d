"""Speed-ups over prompts that two arms have in common, and how sure they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class CommonPrompts:
    """Prompts that an arm and the baseline both answered: float64 [prompts, 4] of the arm's tokens
    and seconds, then the baseline's."""

    table: NDArray[np.float64]

    def speed_up(self) -> float:
        return float(_ratio(self.table.sum(axis=0)))

    def resampled(self, random: np.random.Generator) -> NDArray[np.float64]:
        """Speed-ups of RESAMPLES draws of as many prompts."""
        count = len(self.table)
        drawn = random.integers(count, size=(RESAMPLES, count))
        return _ratio(self.table[drawn].sum(axis=1))


def common_prompts(
    mine: dict[tuple[str, str], tuple[float, float]],
    base: dict[tuple[str, str], tuple[float, float]],
) -> CommonPrompts | None:
    """Of (suite, prompt) with tokens and seconds on both sides; None where there is none."""
    common = [prompt for prompt in mine if prompt in base]
    if not common:
        return None
    return CommonPrompts(np.array([[*mine[prompt], *base[prompt]] for prompt in common]))


def confidence_interval(pairs: Sequence[CommonPrompts]) -> tuple[float, float] | None:
    """95 % by the bootstrap (percentiles), prompts drawn within each suite; seeded."""
    if all(len(pair.table) < 2 for pair in pairs):
        return None  # one prompt says nothing about others
    random = np.random.default_rng(0)
    logs = np.mean([np.log(pair.resampled(random)) for pair in pairs], axis=0)
    low, high = np.exp(np.quantile(logs, [0.025, 0.975]))
    return float(low), float(high)


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers, at least one."""
    return float(np.exp(np.mean(np.log(list(values)))))


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])
    return result
