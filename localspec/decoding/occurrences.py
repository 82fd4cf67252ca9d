"""Counts of recent tokens, for repetition penalties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64] | npt.NDArray[np.int32]


class Occurrences(NamedTuple):
    """Counts of tokens, above 0; `ids` are ascending and unique."""

    ids: Ids
    counts: Counts

    @classmethod
    def of(cls, tokens: Iterable[int]) -> Occurrences:
        return cls(*np.unique(np.array(list(tokens), np.int64), return_counts=True))


NONE = Occurrences.of(())


class PenaltyWindow:
    """The window of a growing text that penalties apply to.

    Args:
        text: may only grow.
        last: length of the window; -1 for all of the text, at a cost independent of its length.
        vocabulary: upper bound of token ids.
    """

    def __init__(self, text: Sequence[int], last: int, vocabulary: int) -> None:
        self._text = text
        self._last = last
        self._seen = 0
        self._counts = np.zeros(vocabulary if last < 0 else 0, np.int32)

    def after(self, path: Sequence[int]) -> Occurrences:
        if self._last >= 0:
            start = max(0, len(self._text) + len(path) - self._last)
            seen = [*self._text[start:], *path]
            return Occurrences.of(seen[max(0, len(seen) - self._last) :])
        new = np.asarray(self._text[self._seen :], np.int64)
        np.add.at(self._counts, new, 1)
        self._seen = len(self._text)
        hypothetical = np.asarray(path, np.int64)
        np.add.at(self._counts, hypothetical, 1)
        ids = self._counts.nonzero()[0]
        found = Occurrences(ids, self._counts[ids])
        np.subtract.at(self._counts, hypothetical, 1)
        return found
