"""Who is answered now, and who waits: first come, first served."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from localspec.server.failures import ApiError


class Ticket:
    """A place in the queue, then a slot. Leave it, whatever happens.

    Attributes:
        slot: its number, None while it waits.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.slot: int | None = None
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once there is a slot."""

    def leave(self, seconds: float | None = None) -> None:
        """Give the slot, or the place in the queue, to the next one.

        Args:
            seconds: that the answer took, for estimates of how long others will wait.
        """
        self._gate.leave(self, seconds)


class Gate:
    """Lets as many answers run as there are slots.

    All of it belongs to the event loop's thread.

    Args:
        slots: answers that run at a time.
        most_waiting: tickets that may wait.
    """

    def __init__(self, slots: int, most_waiting: int) -> None:
        self.slots = slots
        self._most = most_waiting
        self._free = list(range(slots))[::-1]
        self._waiting: deque[Ticket] = deque()
        self._usual = 1.0  # seconds of an answer, roughly

    @property
    def waiting(self) -> int:
        """Tickets without a slot."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Tickets with one."""
        return self.slots - len(self._free)

    def join(self, count: int = 1) -> list[Ticket]:
        """So many tickets, or none.

        Raises:
            ApiError: more would wait than may.
        """
        if self.waiting + count > self._most + len(self._free):
            wait = self._usual * (self.waiting + 1) / self.slots
            raise ApiError(
                429,
                f"{self.running} answers are being written and {self.waiting} wait, which is as "
                "many as may (--max-queue). Try again later.",
                code="queue_full",
                retry_after=min(60, max(1, math.ceil(wait))),
            )
        tickets = [Ticket(self) for _ in range(count)]
        self._waiting.extend(tickets)
        self._admit()
        return tickets

    def leave(self, ticket: Ticket, seconds: float | None) -> None:
        """See `Ticket.leave`."""
        if seconds is not None:
            self._usual += 0.2 * (seconds - self._usual)
        if ticket.slot is not None:
            self._free.append(ticket.slot)
            ticket.slot = None
            self._admit()
        elif ticket in self._waiting:
            self._waiting.remove(ticket)
            ticket.turn.cancel()

    def _admit(self) -> None:
        while self._free and self._waiting:
            ticket = self._waiting.popleft()
            ticket.slot = self._free.pop()
            if not ticket.turn.done():
                ticket.turn.set_result(None)
