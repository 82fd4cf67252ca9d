"""Rows of logits, compared: passes of other shapes run through other kernels and round otherwise.

What decides is how far apart the best tokens are: a number added to all logits of a row changes
nothing, and the tail is never said. Rows that are said to be the same are so in every bit.
"""

from __future__ import annotations

import hashlib
import math
import sys

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
        digest: of the whole row's bits.
    """

    __slots__ = ("digest", "ids", "logits")

    def __init__(self, row: Row) -> None:
        self.ids: Ids = top_ids(row, _KEPT)
        self.logits: npt.NDArray[np.float64] = row[self.ids].astype(np.float64)
        self.digest = digest(row)

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
        one of the BEST, at most; 0 where the rows are the same bits, and only there."""
        if digest(row) == self.digest:
            return 0.0
        ids = self.ids[:BEST]
        other = row[ids].astype(np.float64)
        ours = self.logits[:BEST]
        found = float(np.abs((other - other[0]) - (ours - ours[0])).max())
        return found or sys.float_info.min


def digest(row: Row) -> bytes:
    """Of all its bits."""
    return hashlib.sha256(row.tobytes()).digest()
