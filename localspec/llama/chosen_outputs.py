"""The part of the vocabulary for which a draft model's passes compute logits.

The output matrix is a third of a small draft model's bytes, and a token without logits is merely
not drafted. Frequent tokens and those of the text are enough (FR-Spec, Zhao et al. 2025).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROWS = 16
"""Number of neighbouring ids that are computed together."""
MIN_VOCABULARY = 32_000
"""Smallest vocabulary for which this saves time."""
FREQUENT = 3
"""The lowest 1/FREQUENT of the ids is always computed: a vocabulary built by merging begins with
the frequent tokens."""


class ChosenOutputs:
    """The rows of the output matrix that are computed; rows are only added. `tiles`: int32,
    ascending; tile i has the ids from i · ROWS on."""

    tiles: npt.NDArray[np.int32]

    def __init__(self, vocabulary: int, tokens: Sequence[int]) -> None:
        self._chosen = np.zeros(-(-vocabulary // ROWS), bool)
        self._chosen[: len(self._chosen) // FREQUENT] = True
        self._read: set[int] = set()
        self.read(tokens)

    def read(self, tokens: Sequence[int]) -> None:
        if not self._read.issuperset(tokens):
            self._read.update(tokens)
            self._chosen[np.asarray(tokens) // ROWS] = True
            self.tiles = np.flatnonzero(self._chosen).astype(np.int32)
