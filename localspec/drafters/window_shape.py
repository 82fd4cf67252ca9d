"""How large a window of lookahead decoding may be, by what the rows of a pass cost here.

The window brings the more the wider it is and the longer its n-grams are, but either only as a
logarithm (Fu et al. 2024, section 4), while its rows cost what the curve says: on most processors
nearly as much as passes of their own, on a GPU next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

SKILL = 0.15
"""Tokens a pass that doubling the width brings."""
MOST_ROWS = 48


class WindowShape(NamedTuple):
    """A window.

    Attributes:
        columns: the paper's W.
        levels: tokens of each column; n-grams are one longer (the paper's N − 1).
    """

    columns: int
    levels: int

    @property
    def rows(self) -> int:
        """Tokens that it adds to a pass."""
        return self.columns * self.levels

    @property
    def prospect(self) -> float:
        """Tokens a pass that it is expected to bring."""
        return SKILL * math.log2(1 + self.columns) * (1.0 - 0.5**self.levels)


SHAPES = tuple(
    WindowShape(columns, levels)
    for levels in (2, 3, 4)
    for columns in range(2, 16)
    if columns * levels <= MOST_ROWS
)


def best_shape(seconds: Sequence[float], leaves: int, drafted: int) -> WindowShape | None:
    """The window that is worth most beside a draft; None where there is no room for one.

    Args:
        seconds: of a verifying pass by its tokens, from 1 on.
        leaves: most branches that it may have.
        drafted: tokens of the draft.
    """
    base, room = seconds[1 + drafted], len(seconds) - 1 - drafted
    best, most = None, -math.inf
    for rows, prospect, shape in _worth_it(leaves):
        if rows >= room:
            break
        worth = prospect - (seconds[1 + drafted + rows] - base) / seconds[1]
        if worth > most:
            best, most = shape, worth
    return best


@lru_cache(64)
def _worth_it(leaves: int) -> tuple[tuple[int, float, WindowShape], ...]:
    """Rows and prospects of the windows of so many branches that bring more than any of as few
    rows or fewer, in the order of their rows."""
    found: list[tuple[int, float, WindowShape]] = []
    for shape in sorted(SHAPES, key=lambda shape: (shape.rows, -shape.prospect)):
        if shape.columns <= leaves and (not found or shape.prospect > found[-1][1]):
            found.append((shape.rows, shape.prospect, shape))
    return tuple(found)
