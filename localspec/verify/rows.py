"""Rows of logits, compared: passes of other shapes run through other kernels and round otherwise.

What decides is how far apart the best tokens are: a number added to all logits of a row changes
nothing, and the tail is never said.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from localspec.decoding.distribution import Ids
from localspec.decoding.sampling import Row, top_ids

BEST = 8
"""Tokens whose distances from the best one are compared."""
_KEPT = 32


class Best:
    """The best tokens of a row, which itself is gone with the next pass.

    Attributes:
        ids: int32 [32], best first.
        logits: float64 [32], of these.
    """

    __slots__ = ("ids", "logits")

    def __init__(self, row: Row) -> None:
        self.ids: Ids = top_ids(row, _KEPT)
        self.logits: npt.NDArray[np.float64] = row[self.ids].astype(np.float64)

    @property
    def token(self) -> int:
        """The best one."""
        return int(self.ids[0])

    def gap(self, token: int) -> float:
        """How far a token's logit is below the best one's; infinite where it is not kept."""
        found = np.flatnonzero(self.ids == token)
        return float(self.logits[0] - self.logits[found[0]]) if len(found) else math.inf

    def moved(self, row: Row) -> float:
        """How much farther from, or nearer to, the best token another reading of the same text has
        one of the BEST, at most."""
        ids = self.ids[:BEST]
        other = row[ids].astype(np.float64)
        ours = self.logits[:BEST]
        return float(np.abs((other - other[0]) - (ours - ours[0])).max())
