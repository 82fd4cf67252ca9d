"""Work for the model that is no answer: it waits for its turn as answers do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from localspec.server.events import while_there
from localspec.server.service import Service

Value = TypeVar("Value")


async def in_turn(
    service: Service, request: Request, work: Callable[[Callable[[], bool]], Value]
) -> Value:
    """What some work comes to, done in a thread when it is this request's turn.

    Args:
        work: given what tells whether the client has left.

    Raises:
        ApiError: the queue is full.
        ClientGone: nobody waits for it any more.
    """
    left = threading.Event()

    async def turn() -> Value:
        (ticket,) = service.gate.join(1)
        started = None
        try:
            await ticket.turn
            started = time.monotonic()
            working = asyncio.ensure_future(asyncio.to_thread(work, left.is_set))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                left.set()  # and the slot stays taken until the thread has seen it
                await asyncio.wait({working})
                raise
        finally:
            ticket.leave(None if started is None else time.monotonic() - started)

    return await while_there(request.receive, turn())
