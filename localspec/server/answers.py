"""What is asked of an engine, and the answers as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import perf_counter
from typing import Any

from localspec import Chunk, Engine, SamplingParams, Stream
from localspec.async_stream import AsyncStream
from localspec.decoding.logprobs import TokenLogprob
from localspec.decoding.session import ContextShift
from localspec.prompting.pieces import Piece, Plain, Reader
from localspec.prompting.prompt import Prompt, Tokens
from localspec.server.kept_session import Prompted
from localspec.server.model_hosts import ModelHost
from localspec.server.pieces import AnswerMessage
from localspec.worker_threads import call

SILENCE = 15.0
"""Seconds without a part after which a stream sends a sign of life."""
_OWN = ("reports", "messages", "reader")

Reading = dict[str, Any]
"""How far a prompt is read, in llama.cpp's words."""


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

    @property
    def prompted(self) -> Prompted | None:
        return self.messages or (self.prompt if isinstance(self.prompt, str) else None)

    def nth(self, number: int) -> Ask:
        """For that answer of several to a request: each has its seed."""
        sampling, seed = self.sampling, self.sampling.seed
        if seed is not None:
            sampling = replace(sampling, seed=(seed + number) % (1 << 64))
        return replace(self, sampling=sampling)

    def stream(self, engine: Engine, progress: Callable[[int, int], None] | None) -> Stream:
        """Checked and not begun. Raises LocalspecError, see `Engine.stream`."""
        names = {one.name for one in fields(self)} - {"prompt", *_OWN}
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        return engine.stream(self.prompt, progress=progress, **options)


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    pieces: Sequence[Piece] = ()
    chunk: Chunk | None = None
    reading: Reading | None = None
    complete: bool = False

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        return () if self.chunk is None or self.chunk.step is None else self.chunk.step.logprobs


class Answers:
    """The answers to one request: each waits for its turn.

    Chunks are kept until they are fetched: a client that reads slowly does not keep the engine.
    Close it, whatever happens. The consumer of the parts adds their pieces to `messages`.
    """

    def __init__(self, host: ModelHost, engine: Engine, asks: Sequence[Ask]) -> None:
        self.engine, self.model = engine, host.name
        self.streams: list[Stream] = []
        self.messages = [AnswerMessage() for _ in asks]
        self._host, self._asks = host, asks
        self._readers = [ask.reader() for ask in asks]
        self._read = [(-1, 0.0) for _ in asks]  # tokens of the prompt, and since when
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[int, Chunk | Reading | BaseException | None]]
        self._queue = asyncio.Queue()

    async def begin(self) -> None:
        """Make the streams, a LocalspecError as from `Engine.stream`, and enter the queue; an
        ApiError where it is full."""
        for number, ask in enumerate(self._asks):
            progress = partial(self._reads, number) if ask.reports else None
            self.streams.append(await asyncio.to_thread(ask.stream, self.engine, progress))
        works = [partial(self._run, number) for number in range(len(self._asks))]
        self._tasks = self._host.gate.submit(*works)
        for number, task in enumerate(self._tasks):
            task.add_done_callback(partial(self._ended, number))

    async def parts(self) -> AsyncGenerator[Part | None, None]:
        """What comes, or None after some seconds of silence; a LocalspecError where the engine
        failed."""
        running = len(self.streams)
        while running:
            silence = self._loop.call_later(SILENCE, self._put, -1, None)
            number, item = await self._queue.get()
            silence.cancel()
            if number < 0:
                yield None
            elif isinstance(item, BaseException):
                raise item
            elif isinstance(item, dict):
                yield Part(number, reading=item)
            elif item is None:
                running -= 1
                yield Part(number, self._readers[number].finish(), complete=True)
            else:
                if item.step is not None:
                    self._host.activity.stepped(item.step)
                part = Part(number, self._readers[number].push(item.text), item)
                self.messages[number].logprobs += part.logprobs
                yield part

    def thought_tokens(self, number: int) -> int:
        """Tokens of the thoughts in an answer, whatever it was drafted by."""
        tokenize = self.engine.model.vocabulary.tokenize
        return len(tokenize(self.messages[number].thought, special=False, add_bos=False))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _run(self, number: int, slot: int) -> None:
        stream, reports = self.streams[number], self._asks[number].reports

        async def begin(answer: AsyncStream) -> None:
            answer.begun(stream)

        self._host.activity.began(slot, stream)
        try:
            async with AsyncStream(begin) as answer:
                async for chunk in answer:
                    if reports:
                        self._reads(number, 0, 0)
                    call(self._loop, self._put, number, chunk)  # behind the reports
        finally:
            self._host.activity.ended(slot, stream)
            self._host.answered(self._asks[number].prompted, stream)

    def _reads(self, number: int, done: int, of: int) -> None:
        """See `progress` of `Engine.stream`. Of the reports the first is of what was cached, the
        last of the whole prompt, each further than the one before."""
        stats = self.streams[number].stats
        total, cached = stats.prompt_tokens, stats.cached_tokens
        for processed in (cached, max(cached, total - of + done)):
            before, begun = self._read[number]
            if processed > before:
                begun = begun or perf_counter()
                self._read[number] = processed, begun
                progress = {"total": total, "cache": cached, "processed": processed}
                report = {**progress, "time_ms": (perf_counter() - begun) * 1e3}
                call(self._loop, self._put, number, report)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        # The slot is free before the client can know that its answer is complete.
        self._put(number, None if task.cancelled() else task.exception())

    def _put(self, number: int, item: Chunk | Reading | BaseException | None) -> None:
        self._queue.put_nowait((number, item))
