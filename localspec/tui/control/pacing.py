"""How often the screen may be redrawn while the model works.

On a small machine the model uses all cores and waits for its slowest thread, so a redraw costs it
at least as much. The pause after a redraw follows from the cost of the last ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import thread_time

SHARE = 0.015
"""Cost of a redraw ÷ the pause after it, of one core."""
SHARE_OF_MANY = 0.1
"""The same where the model leaves cores free."""
MANY = 8
LEAST, MOST = 0.05, 0.8
"""Seconds between two redraws; after more than this it looks stuck."""


class RedrawBudget:
    """Pauses between redraws, from processor seconds (`clock`)."""

    def __init__(
        self, *, cores: int | None = None, clock: Callable[[], float] = thread_time
    ) -> None:
        self._share = SHARE_OF_MANY if (cores or os.cpu_count() or 1) >= MANY else SHARE
        self._clock = clock
        self._before = clock()
        self._cost = 0.0

    def start(self) -> float:
        """The model begins to work; what the screen did before does not count."""
        self._before = self._clock()
        self._cost = 0.0
        return LEAST

    def pause(self) -> float:
        """Seconds until the next redraw, from the work since the last call."""
        now = self._clock()
        cost, self._before = now - self._before, now
        # One expensive redraw (a scrolled page, a new code block) is no reason to look stuck.
        self._cost = cost if not self._cost else 0.6 * self._cost + 0.4 * cost
        return min(MOST, max(LEAST, self._cost / self._share))
