"""Answers: generated in threads, brought to the event loop chunk by chunk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from localspec import Chunk, Engine, SamplingParams, Stream
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.session import ContextShift
from localspec.prompting.prompt import Prompt, Tokens
from localspec.server.activity import Activity
from localspec.server.gate import Gate, Turn
from localspec.server.pieces import AnswerMessage, Piece, Plain, Reader, joined
from localspec.server.reading import Reading, ReadingReports
from localspec.worker_threads import call

SILENCE = 15.0
"""Seconds without a part after which a stream sends a sign of life."""


_OWN = ("reports", "messages", "reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What the engine is asked, see `Engine.stream`, and how its answer is read."""

    prompt: Prompt | Tokens = ""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    grammar: str | None = None
    json_schema: str | None = None
    regex: str | None = None
    logprobs: int | None = None
    as_sampled: bool = False
    prediction: str = ""
    reuse: bool = True
    shift: ContextShift | None = None
    thinks: bool | None = None
    reports: bool = False
    messages: Sequence[Mapping[str, Any]] | None = None
    reader: Callable[[], Reader] = Plain

    def stream(self, engine: Engine, reports: ReadingReports | None) -> Stream:
        """The stream of the answer, checked and not begun.

        Raises:
            LocalspecError: see `Engine.stream`.
        """
        names = {one.name for one in fields(self)} - {"prompt", *_OWN}
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        return engine.stream(self.prompt, progress=reports, **options)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the answer of a number, or how far its prompt is read, or its end."""

    number: int
    pieces: Sequence[Piece] = ()
    chunk: Chunk | None = None
    reading: Reading | None = None
    complete: bool = False

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        return () if self.chunk is None or self.chunk.step is None else self.chunk.step.logprobs


class Answers:
    """The answers to one request: each waits for its turn and runs in a thread of its own.

    Chunks are kept until they are fetched: a client that reads slowly does not keep the engine.
    Close it, whatever happens.

    Args:
        streams: prepared, not begun.
        ended: called with the number of each answer that ended.

    Attributes:
        messages: the answers so far; the consumer of the parts adds their pieces.

    Raises:
        ApiError: the queue is full.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        gate: Gate,
        activity: Activity,
        *,
        readers: Sequence[Reader],
        reports: Sequence[ReadingReports | None],
        ended: Callable[[int], object],
    ) -> None:
        self.streams = list(streams)
        self.messages = [AnswerMessage() for _ in streams]
        self._readers, self._reports = readers, reports
        for number, one in enumerate(reports):
            if one is not None:
                one.connect(self.streams[number], partial(self._put, number))
        self._gate, self._activity, self._on_end = gate, activity, ended
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Chunk | Reading | BaseException | None]]
        self._queue = asyncio.Queue()
        self._begun: set[int] = set()
        self._closed = False
        self._turns = gate.join(len(self.streams))
        self._silent = False
        self._timer = self._loop.call_later(SILENCE, self._watch)
        for number, turn in enumerate(self._turns):
            turn.add_done_callback(partial(self._begin, number))

    async def parts(self) -> AsyncGenerator[Part | None, None]:
        """What the answers consist of, as it comes; None after some seconds of silence.

        Raises:
            LocalspecError: the engine failed.
        """
        running = len(self.streams)
        while running:
            number, item = await self._queue.get()
            self._silent = False
            if number < 0:
                yield None
                continue
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Reading):
                yield Part(number, reading=item)
            elif item is None:
                running -= 1
                yield Part(number, self._readers[number].finish(), complete=True)
            else:
                if item.step is not None:
                    self._activity.stepped(item.step)
                part = Part(number, joined(self._readers[number].push(item.text)), item)
                self.messages[number].logprobs += part.logprobs
                yield part

    def close(self) -> None:
        """Stop what runs within a step, and leave the queue."""
        if self._closed:
            return
        self._closed = True
        self._timer.cancel()
        for number, (stream, turn) in enumerate(zip(self.streams, self._turns, strict=True)):
            if number in self._begun:
                stream.cancel()  # no effect at its end
            else:
                self._gate.leave(turn)

    def _watch(self) -> None:
        """Report silence; a timer, as a timeout for every part would slow them down."""
        if self._silent:
            self._queue.put_nowait((-1, None))
        self._silent = True
        self._timer = self._loop.call_later(SILENCE, self._watch)

    def _begin(self, number: int, turn: Turn) -> None:
        if self._closed or turn.cancelled():
            return
        self._begun.add(number)
        self._activity.began(turn.result(), self.streams[number])
        threading.Thread(
            target=self._run, args=(number,), name="localspec-answer", daemon=True
        ).start()

    # In the thread of an answer

    def _run(self, number: int) -> None:
        stream, reports = self.streams[number], self._reports[number]
        end: BaseException | None = None
        try:
            with stream:
                for chunk in stream:
                    if reports is not None:
                        reports.finish()
                    self._put(number, chunk)
        except BaseException as error:  # must not end the thread unseen
            end = error
        # The slot is free before the client can know that its answer is complete.
        call(self._loop, self._ended, number)
        self._put(number, end)

    def _put(self, number: int, item: Chunk | Reading | BaseException | None) -> None:
        call(self._loop, self._queue.put_nowait, (number, item))

    def _ended(self, number: int) -> None:
        turn = self._turns[number]
        seconds = self._activity.ended(turn.result(), self.streams[number])
        self._on_end(number)
        self._gate.leave(turn, seconds)
