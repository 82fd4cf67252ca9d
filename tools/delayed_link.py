"""A TCP proxy on this machine that delays data in each direction, as a network link does."""

from __future__ import annotations

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from collections.abc import Coroutine
from typing import Any


class DelayedLink:
    """Listens on a port (0: a free one) and forwards data `seconds` later."""

    def __init__(self, to: tuple[str, int], seconds: float, port: int = 0) -> None:
        self._to, self._seconds, self._loop = to, seconds, asyncio.new_event_loop()
        self._open: list[StreamWriter] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", port))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> DelayedLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut all connections, and accept no more."""
        self._run(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _cut(self) -> None:
        self._server.close()
        for one in self._open:
            one.transport.abort()

    async def _accept(self, here: StreamReader, answers: StreamWriter) -> None:
        self._open.append(answers)
        try:
            there, requests = await asyncio.open_connection(*self._to)
        except OSError:
            answers.close()
            return
        self._open.append(requests)
        await asyncio.gather(self._forward(here, requests), self._forward(there, answers))

    async def _forward(self, source: StreamReader, sink: StreamWriter) -> None:
        piece = b"."
        while piece:
            try:
                piece = await source.read(1 << 18)
            except OSError:
                piece = b""
            act = (sink.write, piece) if piece else (sink.close,)
            self._loop.call_later(self._seconds, *act)
