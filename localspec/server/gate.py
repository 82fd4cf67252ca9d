"""Who is answered now, and who waits: first come, first served."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from localspec.server.failures import ApiError

Value = TypeVar("Value")


class Gate:
    """Lets as many answers run as there are slots; on the event loop's thread."""

    def __init__(self, slots: int, most_waiting: int) -> None:
        self.slots = slots
        self._most = most_waiting
        self._free = list(range(slots))[::-1]
        self._turn = asyncio.Semaphore(slots)
        self._tasks: set[asyncio.Task[object]] = set()
        self._usual = 1.0  # seconds of an answer, roughly

    @property
    def waiting(self) -> int:
        return len(self._tasks) - self.running

    @property
    def running(self) -> int:
        return self.slots - len(self._free)

    def submit(self, *works: Callable[[int], Awaitable[Value]]) -> list[asyncio.Task[Value]]:
        """Have each work done with the number of a slot when it is its turn; an ApiError where the
        queue has no room for all."""
        if len(self._tasks) + len(works) > self._most + self.slots:
            wait = self._usual * (self.waiting + 1) / self.slots
            raise ApiError(
                429,
                f"{self.running} answers are being generated and {self.waiting} wait, which is "
                "the limit (--max-queue). Try again later.",
                code="queue_full",
                retry_after=min(60, max(1, math.ceil(wait))),
            )
        tasks = [asyncio.create_task(self._in_turn(work)) for work in works]
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return tasks

    async def _in_turn(self, work: Callable[[int], Awaitable[Value]]) -> Value:
        async with self._turn:
            slot, started = self._free.pop(), time.monotonic()
            try:
                return await work(slot)
            finally:
                self._free.append(slot)
                self._usual += 0.2 * (time.monotonic() - started - self._usual)
