"""Answers that repeat themselves to no end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LOOKED_AT = 512
"""Tokens at the end of an answer."""
LEAST, TIMES = 64, 4
"""Tokens that the repetition fills, and how often it comes, at least."""


def period(tokens: Sequence[int], least: int = LEAST) -> int:
    """Length of what the end of an answer, at least `least` tokens, repeats over and over; 0 where
    it does not."""
    tail = np.asarray(tokens)[-LOOKED_AT:]
    for length in range(1, len(tail) // TIMES + 1):
        differs = np.flatnonzero(tail[length:] != tail[:-length])
        repeated = len(tail) - (int(differs[-1]) + 1 if len(differs) else 0)
        if repeated >= max(least, TIMES * length):
            return length
    return 0
