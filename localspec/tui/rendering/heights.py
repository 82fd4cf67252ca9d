"""How many lines each of many messages takes: estimated at first, measured once it was drawn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate


class Heights:
    """Lines of messages one below the other.

    Attributes:
        total: lines of all of them.
    """

    def __init__(self) -> None:
        self._heights: list[int] = []
        self._measured: list[bool] = []
        self._starts = [0]

    @property
    def total(self) -> int:
        return self._starts[-1]

    def estimate(self, heights: Iterable[int]) -> None:
        """Begin anew, nothing measured."""
        self._heights = list(heights)
        self._measured = [False] * len(self._heights)
        self._starts = [0, *accumulate(self._heights)]

    def measure(self, number: int, height: int) -> int:
        """Take over the true height of one; returns by how much it was wrong."""
        off = height - self._heights[number]
        self._heights[number], self._measured[number] = height, True
        if off:
            # Mostly it is the last one that grows.
            self._starts[number + 1 :] = accumulate(
                self._heights[number + 1 :], initial=self._starts[number] + height
            )
        return off

    def is_measured(self, number: int) -> bool:
        return self._measured[number]

    def height(self, number: int) -> int:
        return self._heights[number]

    def start(self, number: int) -> int:
        """The first line of a message."""
        return self._starts[number]

    def at(self, line: int) -> int:
        """Which message a line is part of; the first or the last one for lines outside."""
        return max(0, min(bisect_right(self._starts, line), len(self._heights)) - 1)
