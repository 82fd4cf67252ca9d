"""The part of its vocabulary that a draft model's passes compute logits of.

A third of a small draft model's bytes is its output matrix, and a token that it cannot name is at
worst not drafted: frequent tokens, and those of the text, are enough (FR-Spec, Zhao et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROWS = 16
"""Neighbouring ids, computed together."""
LEAST = 32_000
"""Tokens of a vocabulary that is worth it."""
FREQUENT = 3
"""One of so many ids is always computed, the lowest: a vocabulary made by merging begins with the
frequent tokens."""


class ChosenOutputs:
    """Which rows of the output matrix are computed; they only become more.

    Attributes:
        tiles: int32, ascending: which ROWS ids each.
    """

    tiles: npt.NDArray[np.int32]

    def __init__(self, vocabulary: int, tokens: Sequence[int]) -> None:
        self._chosen = np.zeros(-(-vocabulary // ROWS), bool)
        self._chosen[: len(self._chosen) // FREQUENT] = True
        self._read: set[int] = set()
        self.read(tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Compute these too, from now on."""
        if not self._read.issuperset(tokens):
            self._read.update(tokens)
            self._chosen[np.asarray(tokens) // ROWS] = True
            self.tiles = np.flatnonzero(self._chosen).astype(np.int32)
