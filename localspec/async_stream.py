"""The stream of one answer in an event loop: `async for chunk in stream`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable

from localspec.decoding.stats import GenerationStats
from localspec.errors import UsageError
from localspec.stream import Chunk, Completion, Stream, Unique
from localspec.worker_threads import call_soon

Opening = Callable[["AsyncStream"], Awaitable[None]]
"""Creates the stream of an answer, in another thread, and passes it to `begun`."""


class AsyncStream(Unique):
    """An answer to iterate with `async for`, from `AsyncEngine.stream`.

    It joins the queue when first iterated. Leaving the iteration by `break`, an exception or a
    cancelled task ends the answer within a step; it cannot be resumed.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening: Opening | None = opening
        self._stream: Stream | None = None
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._cancelled = self._over = False

    def __aiter__(self) -> AsyncIterator[Chunk]:
        # Not a generator, which asyncio finalises some time after the loop is left.
        return _Iteration(self)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def text(self) -> str:
        """The answer so far."""
        return "" if self._stream is None else self._stream.text

    @property
    def stats(self) -> GenerationStats:
        """Statistics, updated while it runs."""
        return GenerationStats() if self._stream is None else self._stream.stats

    @property
    def finish_reason(self) -> str | None:
        """None while it waits or runs; see `Completion`."""
        reason = None if self._stream is None else self._stream.finish_reason
        return "cancelled" if reason is None and self._cancelled and not self._runs else reason

    @property
    def _runs(self) -> bool:
        return self._stream is not None and self._stream.runs

    @property
    def _opens(self) -> bool:
        return self._stream is None and self._opening is None and not self._cancelled

    def begun(self, stream: Stream, owner: Hashable = None) -> None:
        """Attach the stream, and join the queue. Called in another thread. `owner`: as for
        `Scheduler.submit`."""
        stream.begin(lambda: call_soon(self._loop, self._ready.set), owner)
        # In this order: an earlier cancellation is seen below, a later one reaches the stream.
        self._stream = stream
        if self._cancelled:
            stream.cancel()

    def cancel(self) -> None:
        """Stop before the next pass, or inside the current one; earlier chunks can still be read.
        From any thread."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    def leave(self) -> None:
        """Cancel the answer, whose reader is gone. Safe in a finalizer."""
        if not self._over:
            self._over = True
            self.cancel()

    async def aclose(self) -> None:
        """Stop, and wait until the engine is free."""
        self.leave()
        while self._runs:
            await self._wait()
        if self._stream is not None:
            self._stream.close()

    async def completion(self) -> Completion:
        """Run to the end and return the whole answer."""
        while await self.next() is not None:
            pass
        return Completion(self.text, self.finish_reason or "cancelled", self.stats)

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end. Raises as `Engine.stream`, or as its generation does."""
        try:
            if self._opening is not None and not self._cancelled:
                self._loop = asyncio.get_running_loop()
                opening, self._opening = self._opening, None
                try:
                    await opening(self)
                finally:
                    self._ready.set()  # another reader may wait for this one to open it
            while self._opens or (self._stream is not None and not self._stream.ready):
                await self._wait()
            chunk = None if self._stream is None else next(self._stream, None)
        except BaseException:
            self.leave()
            raise
        self._over = self._over or chunk is None
        return chunk

    async def _wait(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "An event loop reads this answer already. Read it there, or ask again in this one."
            )
        await self._ready.wait()
        self._ready.clear()


class _Iteration:
    """The iterator of one `async for`."""

    def __init__(self, stream: AsyncStream) -> None:
        self._stream = stream

    def __aiter__(self) -> _Iteration:
        return self

    async def __anext__(self) -> Chunk:
        chunk = await self._stream.next()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def __del__(self) -> None:
        self._stream.leave()
