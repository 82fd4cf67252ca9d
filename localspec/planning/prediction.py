"""What an n-gram expects, and what tells how far to believe it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from localspec.planning.acceptance_estimator import logit


@dataclass(frozen=True, slots=True)
class Guess:
    """One token that the n-gram expects.

    Attributes:
        token: its id.
        length: tokens of the ending that it followed before.
        count: how often it did.
        total: how often anything did.
    """

    token: int
    length: int
    count: int
    total: int

    def features(self, streak: int) -> tuple[float, float, float, float]:
        """For the chances of kind "ngram"; `streak`: guesses in a row that were right before it.

        A long match alone says that the text repeats itself, the streak that the target goes
        along with it.
        """
        return _features(min(self.length, 32), self.count, self.total, min(streak, 31))


@lru_cache(4096)
def _features(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float]:
    return 1.0, _LOG2[length], logit(count / (total + 1)), _LOG2[streak + 1]


_LOG2 = [0.0, *(min(5.0, math.log2(n)) for n in range(1, 33))]
