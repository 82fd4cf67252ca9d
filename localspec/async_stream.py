"""One answer in an event loop: `async for chunk in stream`.

A thread generates it, the loop takes it over, and neither waits for the other while it could do
something: the thread is ahead of whoever reads by so many chunks at most (AHEAD).
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from types import TracebackType
from typing import Any

from localspec.decoding.stats import GenerationStats
from localspec.stream import Chunk, Completion, Stream
from localspec.worker_threads import call

AHEAD = 16
"""Chunks that may wait for whoever reads them. The answer stands still beyond that, so that one
that is not read takes neither memory nor the processor."""

Opening = Callable[[], Stream]


class AwaitedAnswer:
    """What thread and event loop share of an answer.

    Args:
        opening: makes the stream; called in the thread, as it may take a while (a long prompt, a
            grammar).
        chunks: whether somebody takes them; else only the end counts.

    Attributes:
        stream: once there is one.
        over: whether nobody reads on: it was read to its end, or left.
        ended: whether the thread has done with it.
    """

    def __init__(self, opening: Opening, *, chunks: bool) -> None:
        self.stream: Stream | None = None
        self._task: weakref.ref[asyncio.Task[Any]] | None = None
        self.over = self.ended = False
        self._opening: Opening | None = opening
        self._wanted = chunks
        self._stopped = self._left = False
        self._error: BaseException | None = None
        self._chunks: deque[Chunk] = deque()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        # An entry for each chunk that has room. A queue of this kind may be written to by a
        # finalizer, in whatever thread and place that runs: it takes no lock of Python's.
        self._room: SimpleQueue[None] = SimpleQueue()
        for _ in range(AHEAD):
            self._room.put(None)

    # In the event loop

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end.

        Raises:
            LocalspecError: as `Engine.stream`, or while it is generated.
        """
        task = asyncio.current_task()
        self._task = None if task is None else weakref.ref(task)
        try:
            while True:
                ended = self._finished  # in this order: what comes before the end is not missed
                if self._chunks:
                    self._room.put(None)
                    return self._chunks.popleft()
                if ended:
                    break
                await self._wait()
        except BaseException:
            self.leave()
            self.interrupt()
            raise
        self.over = True
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def read_by(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether a task is in the middle of it."""
        return not self.over and self._task is not None and self._task() is task

    async def end(self) -> None:
        """Wait until the thread has done with it."""
        while not self.ended:
            await self._wait()

    async def _wait(self) -> None:
        told: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(told)
        await told

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for told in waiting:
            if not told.done():
                told.set_result(None)

    @property
    def _finished(self) -> bool:
        """Whether nothing more comes: one that was stopped before it began is not waited for."""
        return self.ended or (self._stopped and self.stream is None)

    # From anywhere

    def stop(self) -> None:
        """End the answer as if it were complete; what there is of it can still be read."""
        self._stopped = True
        self.interrupt()
        call(self._loop, self._tell)

    def leave(self) -> None:
        """Nobody reads on. Takes no lock: a finalizer may call it."""
        self.over = self._left = True
        self._room.put(None)

    def interrupt(self) -> None:
        """End the pass that runs, after `stop` or `leave`."""
        self._room.put(None)
        stream = self.stream
        if stream is not None:
            stream.cancel()

    @property
    def cancelled(self) -> bool:
        return self._stopped or self._left

    # In the thread

    def run(self) -> None:
        """Generate it."""
        opening, self._opening = self._opening, None
        assert opening is not None
        try:
            if not self.cancelled:
                self._generate(opening())
        except BaseException as error:  # whoever reads raises it
            self._error = error
        finally:
            self.ended = True
            call(self._loop, self._tell)

    def _generate(self, stream: Stream) -> None:
        # In this order: a cancellation before it is seen below, one after it reaches the stream.
        self.stream = stream
        with stream:
            if self.cancelled:
                stream.cancel()
            for chunk in stream:
                if self._wanted and not self._put(chunk):
                    return
                if self._left:
                    return

    def _put(self, chunk: Chunk) -> bool:
        """Hand a chunk over when there is room for it; False if nobody takes it."""
        if not self._stopped:
            self._room.get()
        if self._left:
            return False
        self._chunks.append(chunk)
        return call(self._loop, self._tell)


class AsyncStream:
    """An answer to iterate with `async for`. Made by `AsyncEngine.stream`.

    It takes its place in the queue when it is first iterated. Leaving the iteration, by `break`, an
    exception or because the task is cancelled, ends the answer within a step and lets the next one
    begin; the text so far stays. An iteration that is left cannot be taken up again.
    """

    def __init__(self, begin: Callable[[bool], AwaitedAnswer]) -> None:
        """`begin` queues the answer; called with whether its chunks are wanted."""
        self._begin = begin
        self._answer: AwaitedAnswer | None = None
        self._cancelled = False

    def __aiter__(self) -> AsyncIterator[Chunk]:
        # Not itself: what `async for` holds is dropped when the loop is left, and tells us so.
        return _Iteration(self)

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def text(self) -> str:
        """The answer so far, which may be some chunks ahead of what was read."""
        stream = self._stream
        return "" if stream is None else stream.text

    @property
    def stats(self) -> GenerationStats:
        """Figures, growing while it runs."""
        stream = self._stream
        return GenerationStats() if stream is None else stream.stats

    @property
    def finish_reason(self) -> str | None:
        """None while it waits or runs; see `Completion`."""
        answer = self._answer
        if answer is None:
            return "cancelled" if self._cancelled else None
        reason = None if answer.stream is None else answer.stream.finish_reason
        if reason is None and answer.cancelled and (answer.ended or answer.stream is None):
            return "cancelled"
        return reason

    def cancel(self) -> None:
        """Stop before the next pass, or inside the one that runs; the iteration then ends by itself
        after what is there. From any thread."""
        self._cancelled = True
        if self._answer is not None:
            self._answer.stop()

    async def aclose(self) -> None:
        """Stop here, and wait until the engine is free."""
        self._cancelled = True
        answer = self._answer
        if answer is not None and not answer.ended:
            answer.leave()
            answer.interrupt()
            if answer.stream is not None:  # else it holds nothing
                await answer.end()

    async def completion(self) -> Completion:
        """Run to the end and return the whole answer."""
        answer = self._started(chunks=False)
        if answer is not None:
            while await answer.next() is not None:
                pass
        return Completion(self.text, self.finish_reason or "cancelled", self.stats)

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end."""
        answer = self._started(chunks=True)
        return None if answer is None else await answer.next()

    def leave(self) -> None:
        """Nobody reads on."""
        if self._answer is not None:
            self._answer.leave()

    def _started(self, *, chunks: bool) -> AwaitedAnswer | None:
        """The answer, in the queue at the latest now; None where it never will be."""
        if self._answer is None and not self._cancelled:
            self._answer = self._begin(chunks)
        return self._answer

    @property
    def _stream(self) -> Stream | None:
        return None if self._answer is None else self._answer.stream


class _Iteration:
    """What one `async for` holds."""

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
