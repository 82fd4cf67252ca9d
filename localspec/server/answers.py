"""What is asked of an engine, and the answers as they come."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import Chunk, Engine, SamplingParams, Stream
from localspec.async_stream import AsyncStream
from localspec.decoding.logprobs import TokenLogprob
from localspec.keywords import AnswerKeywords
from localspec.prompting.pieces import CallBegins, Piece, Plain, Reader, Text, Thought
from localspec.prompting.prompt import Prompt, Tokens
from localspec.server.kept_session import Prompted
from localspec.server.model_hosts import ModelHost
from localspec.worker_threads import call_soon

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of Python itself from 3.11 on

SILENCE = 15.0
"""Seconds without a part after which a stream sends a sign of life."""

Reading = dict[str, Any]
"""How far a prompt is read, in llama.cpp's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What the engine is asked, see `Engine.stream`, and how its answer is read. `silent`: only the
    prompt is read, into the cache; nothing is told of the answer."""

    prompt: Prompt | Tokens = ""
    options: AnswerKeywords = field(default_factory=AnswerKeywords)
    silent: bool = False
    reports: bool = False
    messages: Sequence[Mapping[str, Any]] | None = None
    reader: Callable[[], Reader] = Plain

    @property
    def prompted(self) -> Prompted | None:
        return self.messages or (self.prompt if isinstance(self.prompt, str) else None)

    @property
    def sampling(self) -> SamplingParams:
        return self.options.get("sampling") or SamplingParams()

    def having(self, **options: Unpack[AnswerKeywords]) -> StreamRequest:
        """The same with these options."""
        return replace(self, options={**self.options, **options})

    def nth(self, number: int) -> StreamRequest:
        """For that answer of several to a request: each has its seed."""
        seed = self.sampling.seed
        if seed is None:
            return self
        return self.having(sampling=replace(self.sampling, seed=(seed + number) % (1 << 64)))


@dataclass(slots=True)
class Call:
    name: str
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")

    def as_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments or "{}"}
        return {"id": self.id, "type": "function", "function": function}

    def as_object(self) -> Any:
        """The arguments parsed; {} where they are no object, as when the answer was cut off."""
        with suppress(ValueError):
            found = json.loads(self.arguments or "{}")
            return found if isinstance(found, dict) else {}
        return {}


@dataclass(slots=True, eq=False)
class Answer:
    """One of the answers to a request: its stream, and its message so far."""

    number: int
    ask: StreamRequest
    stream: Stream = field(init=False)
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    _reader: Reader = field(init=False)
    _processed: int = -1
    _reads_since: float = 0.0

    def __post_init__(self) -> None:
        self._reader = self.ask.reader()

    @property
    def called(self) -> bool:
        """Whether it ends with calls, where it is not cut off; a stop string may end it within
        one."""
        if not self.calls or self.stream.stopped is None:
            return bool(self.calls)
        with suppress(ValueError):
            return json.loads(self.calls[-1].arguments or "{}") is not None
        return False

    @property
    def stopped(self) -> str | None:
        """The stop string that ended it, as the client wrote it; not one in JSON that is ours."""
        found = self.stream.stopped
        if found is None or "stop_after" not in self.ask.options:
            return found
        with suppress(ValueError):
            json.loads(f"{self.stream.text}}}")
            return None  # it was behind the response
        return str(json.loads(f'"{found}"'))

    def parts(self, chunk: Chunk | None) -> Iterator[AnswerPart]:
        """What the next chunk brings, or at the end what was held back."""
        pieces: Sequence[Piece | None]
        if chunk is None:
            pieces = self._reader.finish()
        else:
            self.tokens += chunk.token_ids
            self.logprobs += () if chunk.step is None else chunk.step.logprobs
            pieces = self._reader.push(chunk.text) or (None,)
        for piece in pieces:
            if piece is not None:
                self._add(piece)
            yield AnswerPart(self, piece, chunk)
            chunk = None

    def _add(self, piece: Piece) -> None:
        if isinstance(piece, Text):
            self.text += piece.text
        elif isinstance(piece, Thought):
            self.thought += piece.text
        elif isinstance(piece, CallBegins):
            self.calls.append(Call(piece.name))
        else:
            self.calls[-1].arguments += piece.text

    def reads(self, done: int, of: int) -> Sequence[Reading]:
        """What `progress` of `Engine.stream` says. Of the reports the first is of what was cached,
        the last of the whole prompt, each further than the one before."""
        stats, found = self.stream.stats, list[Reading]()
        total, cached = stats.prompt_tokens, stats.cached_tokens
        for processed in (cached, max(cached, total - of + done)):
            if processed > self._processed:
                self._processed = processed
                self._reads_since = self._reads_since or perf_counter()
                took = (perf_counter() - self._reads_since) * 1e3
                found.append(
                    {"total": total, "cache": cached, "processed": processed, "time_ms": took}
                )
        return found


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """What came next: a piece of an answer, of the chunk that is there with its first piece, a
    report, or the end."""

    answer: Answer
    piece: Piece | None = None
    chunk: Chunk | None = None
    reading: Reading | None = None
    complete: bool = False

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        return () if self.chunk is None or self.chunk.step is None else self.chunk.step.logprobs


class Answers:
    """The answers to one request: each waits for its turn.

    Chunks are kept until they are fetched: a client that reads slowly does not keep the engine.
    Close it, whatever happens.
    """

    def __init__(self, host: ModelHost, engine: Engine, asks: Sequence[StreamRequest]) -> None:
        self.engine, self.model = engine, host.name
        self.all = [Answer(number, ask) for number, ask in enumerate(asks)]
        self._host = host
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[Answer, Chunk | Reading | BaseException | None] | None]
        self._queue = asyncio.Queue()

    async def begin(self) -> None:
        """Make the streams, a LocalspecError as from `Engine.stream`, and enter the queue; an
        ApiError where it is full."""
        for answer in self.all:
            progress = partial(self._reads, answer) if answer.ask.reports else None
            options: AnswerKeywords = {**answer.ask.options, "progress": progress}
            stream = partial(self.engine.stream, answer.ask.prompt, **options)
            answer.stream = await asyncio.to_thread(stream)
        self._tasks = self._host.gate.submit(*(partial(self._run, one) for one in self.all))
        for answer, task in zip(self.all, self._tasks, strict=True):
            task.add_done_callback(partial(self._ended, answer))

    async def parts(self) -> AsyncGenerator[AnswerPart | None, None]:
        """What comes, or None after some seconds of silence; a LocalspecError where the engine
        failed."""
        running = len(self.all)
        while running:
            silence = self._loop.call_later(SILENCE, self._queue.put_nowait, None)
            told = await self._queue.get()
            silence.cancel()
            if told is None:
                yield None
                continue
            answer, item = told
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, dict):
                yield AnswerPart(answer, reading=item)
                continue
            if item is not None and item.step is not None:
                self._host.activity.stepped(item.step)
            if item is None or not answer.ask.silent:
                for part in answer.parts(item):
                    yield part
            if item is None:
                running -= 1
                yield AnswerPart(answer, complete=True)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _run(self, answer: Answer, slot: int) -> None:
        stream, reports = answer.stream, answer.ask.reports

        async def begin(begun: AsyncStream) -> None:
            begun.begun(stream)

        self._host.activity.began(slot, stream)
        try:
            async with AsyncStream(begin) as chunks:
                async for chunk in chunks:
                    if reports:
                        self._reads(answer, 0, 0)
                    call_soon(self._loop, self._put, answer, chunk)  # behind the reports
        finally:
            self._host.activity.ended(slot, stream)
            self._host.answered(answer.ask.prompted, stream)

    def _reads(self, answer: Answer, done: int, of: int) -> None:
        for report in answer.reads(done, of):
            call_soon(self._loop, self._put, answer, report)

    def _ended(self, answer: Answer, task: asyncio.Task[None]) -> None:
        # The slot is free before the client can know that its answer is complete.
        self._put(answer, None if task.cancelled() else task.exception())

    def _put(self, answer: Answer, item: Chunk | Reading | BaseException | None) -> None:
        self._queue.put_nowait((answer, item))
