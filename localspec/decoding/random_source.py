"""The only source of chance in a generation.

Acceptance rules and sampled drafts ask for coins and draws instead of a random number, so that a
test can put in one that walks through *every* outcome with its exact probability, and compare the
distribution of whole sequences with the target's to 1e-9.
"""

from __future__ import annotations

import random
from typing import Protocol

from localspec.decoding.distribution import Distribution


class RandomSource(Protocol):
    """Chance, as the algorithm asks for it."""

    def coin(self, probability: float) -> bool:
        """True with the given probability (clipped to [0, 1])."""
        ...

    def draw(self, distribution: Distribution) -> int:
        """One token id."""
        ...


class SeededRandom:
    """Pseudo-random numbers; the same seed and the same drafts give the same tokens."""

    __slots__ = ("_random",)

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def coin(self, probability: float) -> bool:
        return self._random() < probability

    def draw(self, distribution: Distribution) -> int:
        return distribution.quantile(self._random())
