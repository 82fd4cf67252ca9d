"""Who is answered now, and who waits: first come, first served."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from localspec.server.failures import ApiError

Turn = asyncio.Future[int]
"""A place in the queue; its result is the number of a slot."""


class Gate:
    """Lets as many answers run as there are slots; on the event loop's thread."""

    def __init__(self, slots: int, most_waiting: int) -> None:
        self.slots = slots
        self._most = most_waiting
        self._free = list(range(slots))[::-1]
        self._waiting: deque[Turn] = deque()
        self._usual = 1.0  # seconds of an answer, roughly

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return self.slots - len(self._free)

    def join(self, count: int = 1) -> list[Turn]:
        """So many turns, or none. Leave each of them, whatever happens."""
        if self.waiting + count > self._most + len(self._free):
            wait = self._usual * (self.waiting + 1) / self.slots
            raise ApiError(
                429,
                f"{self.running} answers are being generated and {self.waiting} wait, which is "
                "the limit (--max-queue). Try again later.",
                code="queue_full",
                retry_after=min(60, max(1, math.ceil(wait))),
            )
        turns = [asyncio.get_running_loop().create_future() for _ in range(count)]
        self._waiting.extend(turns)
        self._admit()
        return turns

    def leave(self, turn: Turn, seconds: float | None = None) -> None:
        """Give the slot, or the place in the queue, to the next one; the answer took `seconds`."""
        if seconds is not None:
            self._usual += 0.2 * (seconds - self._usual)
        if turn in self._waiting:
            self._waiting.remove(turn)
            turn.cancel()
        elif not turn.cancelled():
            self._free.append(turn.result())
            self._admit()

    def _admit(self) -> None:
        while self._free and self._waiting:
            turn = self._waiting.popleft()
            if not turn.cancelled():
                turn.set_result(self._free.pop())
