"""Rows of logits, compared by how far apart the best tokens are."""

from __future__ import annotations

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
    """The best tokens of a row: ids int32 [32], best first, and their logits float64 [32]."""

    __slots__ = ("_bits", "ids", "logits")

    def __init__(self, row: Row) -> None:
        self.ids: Ids = top_ids(row, _KEPT)
        self.logits: npt.NDArray[np.float64] = row[self.ids].astype(np.float64)
        self._bits = hash(row.tobytes())

    @property
    def token(self) -> int:
        return int(self.ids[0])

    def gap(self, token: int) -> float:
        """How far a token's logit is below the best one's; infinite where it is not kept."""
        found = np.flatnonzero(self.ids == token)
        return float(self.logits[0] - self.logits[found[0]]) if len(found) else math.inf

    def moved(self, row: Row) -> float:
        """How far another reading moves one of them relative to the best; 0 means the same bits."""
        if hash(row.tobytes()) == self._bits:
            return 0.0
        other, ours = row[self.ids[:BEST]].astype(np.float64), self.logits[:BEST]
        found = float(np.abs((other - other[0]) - (ours - ours[0])).max())
        return found or sys.float_info.min
