"""Responses that go on while an answer is written, and end with the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.types import Receive, Scope, Send

Value = TypeVar("Value")

PING = 15.0
"""Seconds of silence after which a stream of events says that it is still there."""


class ClientGone(Exception):
    """Nobody waits for this answer any more."""


async def gone(receive: Receive) -> None:
    """Return when the client is gone; the body of the request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(receive: Receive, work: Coroutine[Any, Any, Value]) -> Value:
    """The outcome of some work, which is cancelled when the client goes away.

    Raises:
        ClientGone: it did.
    """
    watching = asyncio.ensure_future(gone(receive))
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (watching, working):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


class Streamed:
    """A response whose parts come as they are made.

    Args:
        parts: bytes to send.
        close: called however it ends, also where nothing was sent.
        media_type: of them.
        ping: what to send after every `PING` seconds of silence; b"" for nothing.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        close: Callable[[], object],
        *,
        media_type: str = "text/event-stream",
        ping: bytes = b": still there\n\n",
    ) -> None:
        self._parts = parts
        self._close = close
        self._media_type = media_type
        self._ping = ping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGone):
                await while_there(receive, self._pump(send))
        finally:
            self._close()

    async def _pump(self, send: Send) -> None:
        headers = [
            (b"content-type", self._media_type.encode()),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._parts) as parts:
            following = asyncio.ensure_future(anext(parts, None))
            try:
                while True:
                    done, _ = await asyncio.wait({following}, timeout=PING)
                    part = following.result() if done else self._ping
                    if part is None:
                        break
                    if done:
                        following = asyncio.ensure_future(anext(parts, None))
                    if part:
                        await send({"type": "http.response.body", "body": part, "more_body": True})
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await following
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def as_json(value: Any) -> bytes:
    """JSON in UTF-8, on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def event(value: Mapping[str, Any], name: str | None = None) -> bytes:
    """A server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + as_json(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
