"""When a count of threads that was left may be tried again."""

from __future__ import annotations

from math import inf

BUSY = 0.35
"""Cores that others use: from so many on the machine is busy."""
FIRST_WAIT, LAST_WAIT = 0.3, 60.0
"""Seconds until more threads are tried again, after one failure and after many."""
BLIND_WAIT = 0.5
"""The first wait where nobody knows what others use."""
BURST, REFILL = 4, 10.0
"""Waits may be cut short so many times in a row, because others left meanwhile; one more time
every so many seconds."""


class ThreadWaits:
    """How long each count has to wait, longer after each failure.

    Args:
        now: seconds of some clock, as in all that is asked.
    """

    def __init__(self, now: float) -> None:
        self._waits: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._failed_busy: dict[int, bool] = {}
        self._shortcuts, self._refilled = float(BURST), now

    def begin_with(self, count: int, wait: float) -> None:
        """A count is tried, for the first time perhaps: how long it waits after it failed once."""
        self._waits.setdefault(count, wait)

    def over(self, count: int, now: float) -> bool:
        """Whether it may be tried."""
        return now >= self._not_before.get(count, -inf)

    def end(self, count: int) -> None:
        """It is used, and need not wait."""
        self._not_before.pop(count, None)

    def failed_busy(self, count: int) -> bool:
        """Whether others left no room for it when it failed."""
        return self._failed_busy.get(count, False)

    def left(
        self, count: int, now: float, others: float | None, growth: float, *, short: bool
    ) -> None:
        """A count was left, after a short time or a long one.

        Args:
            others: cores that other processes use; None where that is not known.
            growth: of its wait, where the time was short.
        """
        first = FIRST_WAIT if others is not None else BLIND_WAIT
        wait = min(LAST_WAIT, growth * self._waits.get(count, first)) if short else first
        self._waits[count] = wait
        self._not_before[count] = now + wait
        self._failed_busy[count] = others is not None and others >= BUSY

    def cut_short(self, now: float) -> bool:
        """Whether a wait may be cut short once more, which it is then."""
        gained = (now - self._refilled) / REFILL
        self._shortcuts, self._refilled = min(BURST, self._shortcuts + gained), now
        if self._shortcuts < 1.0:
            return False
        self._shortcuts -= 1.0
        return True
