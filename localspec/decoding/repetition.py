"""Detection of answers that repeat themselves endlessly."""

from collections.abc import Sequence

import numpy as np

WINDOW = 512
"""Tokens examined at the end of an answer."""
LEAST, TIMES = 64, 4
"""Minimum length of the whole repetition, in tokens, and minimum number of its periods."""


def period(tokens: Sequence[int], least: int = LEAST) -> int:
    """The period of a repetition of at least `least` tokens at the end of an answer; 0 if none."""
    tail = np.asarray(tokens)[-WINDOW:]
    for length in range(1, len(tail) // TIMES + 1):
        differs = np.flatnonzero(tail[length:] != tail[:-length])
        repeated = len(tail) - (int(differs[-1]) + 1 if len(differs) else 0)
        if repeated >= max(least, TIMES * length):
            return length
    return 0
