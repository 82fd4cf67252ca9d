"""The engine and its answers for asyncio programs: `async for chunk in engine.stream(…)`."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from localspec.decoding.stats import GenerationStats
from localspec.engine import Engine
from localspec.errors import EngineBusy, UsageError
from localspec.keywords import AnswerKeywords, advised
from localspec.prompting.prompt import Prompt
from localspec.prompting.template import Message
from localspec.scheduling.task import CLOSED, NOT_HERE
from localspec.sessions.sessions import OpenedSession
from localspec.stream import Chunk, Completion, Stream, Unique
from localspec.typed import convert, typed
from localspec.worker_threads import call_soon, run_in_thread, running_loop

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in the standard library since 3.11


_TURNS = 8  # of an event loop, in which a generator that was left ends its answer

Result = TypeVar("Result")
Opening = Callable[["AsyncStream"], Awaitable[None]]
"""Creates the stream of an answer, in another thread, and passes it to `begun`."""


class AsyncEngine(Unique, AbstractAsyncContextManager["AsyncEngine"]):
    """An open engine whose answers are awaited. Created by `load_async`, or from an engine.

    Answers begin in the order in which they are first awaited, `Engine.parallel` at a time. Several
    event loops may use it; one answer belongs to the loop that began it. `engine`: the engine that
    answers. It can also be used directly; `aclose` closes it."""

    @typed
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._threads = ThreadPoolExecutor(1, "localspec-async")
        self._process = os.getpid()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop all answers, waiting ones included, and free models and caches."""
        self._threads.shutdown(wait=False)
        # Continues if cancelled; otherwise threads would be left running.
        await run_in_thread("localspec-close", self._close)

    def _close(self) -> None:
        self._threads.shutdown()  # all answers have begun then, and are cancelled by the engine
        self.engine.close()

    @advised
    def stream(
        self, prompt: Prompt | Sequence[int], **asked: Unpack[AnswerKeywords]
    ) -> AsyncStream:
        """An answer to iterate with `async for`; arguments and errors are those of `Engine.stream`.

        Nothing happens before it is iterated, so wrong values are raised by the first step.
        `progress` is called in the event loop.

        Raises:
            TypeError: an unknown keyword.
            EngineBusy: by the first step, if this task already reads as many answers as the
                engine generates at once, and so would wait for itself.
        """

        async def opening(answer: AsyncStream) -> None:
            loop = asyncio.get_running_loop()
            progress = convert("progress", asked.get("progress"), Callable | None)
            if progress is not None:
                asked["progress"] = partial(call_soon, loop, progress)
            owner = await self._reader()
            reference = weakref.ref(answer)  # the thread may outlast an answer that is dropped

            def begin() -> None:
                if (wanted := reference()) is not None:
                    wanted.begun(self.engine.stream(prompt, **asked), owner)

            await self._in_turn(begin)

        return AsyncStream(opening)

    async def chat(
        self, messages: Sequence[Message], **asked: Unpack[AnswerKeywords]
    ) -> Completion:
        """Answer chat messages; see `stream`. A cancelled task ends the answer within a step."""
        listed = [*messages] if isinstance(messages, str) else messages  # text is refused
        return await self.stream(listed, **asked).completion()

    async def generate(self, text: str, **asked: Unpack[AnswerKeywords]) -> Completion:
        """Continue raw text, without a chat template; see `chat`."""
        return await self.stream(text, **asked).completion()

    async def open_session(self, path: str | os.PathLike[str]) -> OpenedSession:
        """`Engine.open_session`, in the order of calls."""
        await self._reader()
        return await self._in_turn(lambda: self.engine.open_session(path))

    async def save_session(self, path: str | os.PathLike[str], conversation: Any = None) -> int:
        """`Engine.save_session`, in the order of calls."""
        await self._reader()
        return await self._in_turn(lambda: self.engine.save_session(path, conversation))

    async def _reader(self) -> Hashable:
        """The owner of what this task asks for. Raises EngineBusy if it would wait for itself."""
        task = asyncio.current_task()
        owner = None if task is None else (weakref.ref(task), threading.get_ident())
        for _ in range(_TURNS):
            with suppress(EngineBusy):
                self.engine.slots.require_turn(owner)
                return owner
            await asyncio.sleep(0)
        self.engine.slots.require_turn(owner)
        return owner

    async def _in_turn(self, task: Callable[[], Result]) -> Result:
        if self._process != os.getpid():
            raise UsageError(NOT_HERE)  # its thread was not copied
        try:
            done = self._threads.submit(task)
        except RuntimeError:  # it is shut down
            raise UsageError(CLOSED) from None
        return await asyncio.wrap_future(done)


class AsyncStream(Unique, AbstractAsyncContextManager["AsyncStream"]):
    """An answer to iterate with `async for`, from `AsyncEngine.stream`.

    It joins the queue when first iterated. Leaving the iteration by `break`, an exception or a
    cancelled task ends the answer within a step; it cannot be resumed.
    """

    def __init__(self, opening: Opening) -> None:
        self._opening: Opening | None = opening
        self._stream: Stream | None = None
        self._ready = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._cancelled = False
        self._error: Exception | None = None  # of the opening

    def __aiter__(self) -> AsyncIterator[Chunk]:
        # Not a generator, which asyncio finalises some time after the loop is left.
        return _Iteration(self)

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

    def begun(self, stream: Stream, owner: Hashable = None) -> None:
        """Attach the stream, and join the queue. Called in another thread. `owner`: as for
        `Scheduler.submit`."""
        loop, ready = self._loop, self._ready  # not `self`, so that an answer that is dropped ends
        stream.begin(lambda: call_soon(loop, ready.set), owner)
        # In this order: an earlier cancellation is seen below, a later one reaches the stream.
        self._stream = stream
        if self._cancelled:
            stream.cancel()

    def cancel(self) -> None:
        """Stop before the next pass, or inside the current one; earlier chunks can still be read.
        From any thread, and safe in a finalizer."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    async def aclose(self) -> None:
        """Stop, and wait until the engine is free."""
        self.cancel()
        while self._runs:
            await self._wait()
        if self._stream is not None:
            self._stream.close()

    async def completion(self) -> Completion:
        """Run to the end and return the whole answer; raises the error of one that did not begin,
        as often as it is called."""
        while await self.next() is not None:
            pass
        if self._error is not None:
            raise self._error
        if self._stream is not None:
            return self._stream.completion()
        return Completion("", "cancelled", self.stats)

    async def next(self) -> Chunk | None:
        """The next chunk, None at the end. Raises as `Engine.stream`, or as its generation does."""
        try:
            if self._opening is not None and not self._cancelled:
                self._loop = running_loop()
                opening, self._opening = self._opening, None
                try:
                    await opening(self)
                except Exception as error:
                    self._error = error
                    raise
                finally:
                    self._ready.set()  # another reader may wait for this one to open it
            while not (self._cancelled if self._stream is None else self._stream.ready):
                await self._wait()
            return None if self._stream is None else next(self._stream, None)
        except BaseException:
            self.cancel()
            raise

    async def _wait(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "Another event loop reads this answer. Read it there, or ask again in this one."
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
        self._stream.cancel()
