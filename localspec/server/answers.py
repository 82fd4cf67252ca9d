"""Requests to the engine, and their answers during generation."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any

from localspec import Chunk, Engine, SamplingParams, Stream
from localspec.async_engine import AsyncStream
from localspec.decoding.logprobs import TokenLogprob
from localspec.keywords import AnswerKeywords
from localspec.prompting.prompt import Prompt, Tokens
from localspec.prompting.reasoning import (
    CallArguments,
    CallBegins,
    Piece,
    Plain,
    Reader,
    Text,
    Thought,
)
from localspec.server.answer_figures import TextOffsets, timings
from localspec.server.model_hosts import ModelHost
from localspec.server.near_json import missing_end, parse_partial
from localspec.text import finite
from localspec.worker_threads import call_soon

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in the standard library since 3.11

SILENCE = 15.0
"""Seconds without output after which a stream sends a ping."""

Progress = dict[str, Any]
"""Progress of prefill, with llama.cpp's field names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """Arguments of `Engine.stream`, and the reader of its answer. `silent`: only prefill the cache,
    and drop the answer; `reports`: send the progress of prefill."""

    prompt: Prompt | Tokens = ""
    options: AnswerKeywords = field(default_factory=AnswerKeywords)
    silent: bool = False
    reports: bool = False
    messages: Sequence[Mapping[str, Any]] | None = None
    reader: Callable[[], Reader] = Plain

    @property
    def sampling(self) -> SamplingParams:
        return self.options.get("sampling") or SamplingParams()

    def with_options(self, **options: Unpack[AnswerKeywords]) -> StreamRequest:
        """Return a copy with these options."""
        return replace(self, options={**self.options, **options})

    def nth(self, number: int) -> StreamRequest:
        """Return the request for one of several answers, each with a different seed."""
        seed = self.sampling.seed
        if seed is None:
            return self
        return self.with_options(sampling=replace(self.sampling, seed=(seed + number) % (1 << 64)))


@dataclass(slots=True)
class Call:
    """A call so far; `cut`: the answer ended within it."""

    name: str
    custom: bool = False
    arguments: str = ""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")
    cut: bool = False

    def as_openai(self) -> dict[str, Any]:
        if self.custom:
            custom = {"name": self.name, "input": self.arguments}
            return {"id": self.id, "type": "custom", "custom": custom}
        said = self.arguments or ("" if self.cut else "{}")
        function = {"name": self.name, "arguments": said}
        return {"id": self.id, "type": "function", "function": function}

    def as_object(self) -> Any:
        """Parse the arguments: the complete members of a cut call, {} if they are no object."""
        if self.custom:
            return {"input": self.arguments}
        with suppress(ValueError):
            found = finite(parse_partial(self.arguments or "{}", True))
            return found if isinstance(found, dict) else {}
        return {}


def _parsed(text: str) -> Any:
    """A JSON value; None if it is invalid, incomplete or too deep."""
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


@dataclass(slots=True, eq=False)
class Answer:
    """One of the answers to a request: its stream and its content so far."""

    number: int
    ask: StreamRequest
    reader: Reader
    offsets: TextOffsets
    slot: int = 0
    stream: Stream = field(init=False)
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    _unsent: list[tuple[int, TokenLogprob]] = field(default_factory=list)
    _length: int = 0  # of the text, thoughts and calls included
    _calling: bool = False
    _processed: int = -1
    _reading_since: float = 0.0

    @property
    def timings(self) -> dict[str, Any]:
        """llama.cpp's figures of the answer so far."""
        return timings(self.stream.stats, silent=self.ask.silent)

    @property
    def called(self) -> bool:
        """Whether the answer has calls and did not end within one."""
        return bool(self.calls) and not self.calls[-1].cut

    @property
    def stopped(self) -> str | None:
        """The client's stop string that ended the answer; None if it was in the enclosing JSON."""
        found = self.stream.stopped
        if found is None or "stop_after" not in self.ask.options:
            return found
        if _parsed(f"{self.stream.text}}}") is not None:
            return None  # it came after the response
        return str(json.loads(f'"{found}"'))

    def parts(self, chunk: Chunk | None) -> Iterator[AnswerPart]:
        """Return the parts of the next chunk, or the remaining ones at the end (None)."""
        pieces: Iterable[Piece | None]
        if chunk is None:
            pieces = chain(self._last_pieces(), (None,))
        else:
            self.tokens += chunk.token_ids
            self._length += len(chunk.text)
            found = () if chunk.step is None else chunk.step.logprobs
            starts = self.offsets.of(one.token for one in found)
            self._unsent += zip(starts, found, strict=True)
            pieces = self.reader.push(chunk.text) or (None,)
        logprobs = self._take_logprobs(ended=chunk is None)
        for piece in pieces:
            if piece is not None:
                self._add(piece)
            yield AnswerPart(self, piece, chunk, logprobs)
            chunk, logprobs = None, []

    def _take_logprobs(self, *, ended: bool) -> list[TokenLogprob]:
        """Logprobs of tokens that begin in the text so far; later ones may be of a stop string."""
        whole = ended and self.stream.stopped is None
        count = sum(whole or start < self._length for start, _ in self._unsent)
        taken = [one for _, one in self._unsent[:count]]
        del self._unsent[:count]
        self.logprobs += taken
        return taken

    def _last_pieces(self) -> Iterator[Piece]:
        """The remaining pieces, and the missing end of a call in which the answer ended."""
        yield from self.reader.finish()
        if not self._calling:
            return
        last = self.calls[-1]
        if (self.stream.finish_reason, self.stream.stopped) != ("stop", None):
            last.cut = last.custom or _parsed(last.arguments) is None
        elif not last.custom and (rest := missing_end(last.arguments)):
            yield CallArguments(rest)

    def _add(self, piece: Piece) -> None:
        self._calling = isinstance(piece, CallBegins | CallArguments)
        if isinstance(piece, Text):
            self.text += piece.text
        elif isinstance(piece, Thought):
            self.thought += piece.text
        elif isinstance(piece, CallBegins):
            self.calls.append(Call(piece.name, piece.custom))
        else:
            self.calls[-1].arguments += piece.text

    def progress_reports(self, done: int, of: int) -> Sequence[Progress]:
        """Reports for one call of `Engine.stream`'s `progress`. The first counts the cached
        tokens, the last the whole prompt, and the counts only increase."""
        stats, found = self.stream.stats, list[Progress]()
        total, cached = stats.prompt_tokens, stats.cached_tokens
        for processed in (cached, max(cached, total - of + done)):
            if processed > self._processed:
                self._processed = processed
                self._reading_since = self._reading_since or perf_counter()
                elapsed = (perf_counter() - self._reading_since) * 1e3
                found.append(
                    {"total": total, "cache": cached, "processed": processed, "time_ms": elapsed}
                )
        return found


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A piece of an answer (the first of a chunk with the chunk), a report, or the end."""

    answer: Answer
    piece: Piece | None = None
    chunk: Chunk | None = None
    logprobs: Sequence[TokenLogprob] = ()
    progress: Progress | None = None
    complete: bool = False


class Answers:
    """The answers to one request; each waits for a slot.

    Chunks are queued until they are fetched, so that slow clients do not block the engine. Always
    call `close` at the end.
    """

    def __init__(self, host: ModelHost, engine: Engine, requests: Sequence[StreamRequest]) -> None:
        self.engine, self.model = engine, host.name
        asked = enumerate(requests)
        self.all = [Answer(n, ask, ask.reader(), TextOffsets(engine)) for n, ask in asked]
        self._host = host
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[Answer, Chunk | Progress | BaseException | None] | None]
        self._queue = asyncio.Queue()

    async def begin(self) -> None:
        """Create the streams and queue them. Raises ApiError if the queue is full, otherwise as
        `Engine.stream`."""
        for answer in self.all:
            progress = partial(self._report_progress, answer) if answer.ask.reports else None
            options: AnswerKeywords = {**answer.ask.options, "progress": progress}
            stream = partial(self.engine.stream, answer.ask.prompt, **options)
            answer.stream = await asyncio.to_thread(stream)
        self._tasks = self._host.queue.submit(*(partial(self._run, one) for one in self.all))
        for answer, task in zip(self.all, self._tasks, strict=True):
            task.add_done_callback(partial(self._finish, answer))

    async def parts(self) -> AsyncGenerator[AnswerPart | None, None]:
        """Yield parts, and None after some seconds without one. Raises LocalspecError if the
        engine fails."""
        running = len(self.all)
        while running:
            silence = self._loop.call_later(SILENCE, self._queue.put_nowait, None)
            entry = await self._queue.get()
            silence.cancel()
            if entry is None:
                yield None
                continue
            answer, item = entry
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, dict):
                yield AnswerPart(answer, progress=item)
                continue
            if item is not None and item.step is not None:
                self._host.totals.add_step(item.step, len(self._host.slots))
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
        host, stream, reports = self._host, answer.stream, answer.ask.reports
        answer.slot, host.slots[slot] = slot, (next(host.numbers), stream)

        async def begin(begun: AsyncStream) -> None:
            begun.begun(stream)

        try:
            async with AsyncStream(begin) as chunks:
                async for chunk in chunks:
                    if reports:
                        self._report_progress(answer, 0, 0)
                    # After the reports.
                    call_soon(self._loop, self._queue.put_nowait, (answer, chunk))
        finally:
            host.totals.add_answer(stream.stats, stream.finish_reason or "error")
            del host.slots[slot]
            if session := host.session:
                text = answer.ask.prompt if isinstance(answer.ask.prompt, str) else None
                session.record_answer(answer.ask.messages or text, stream)

    def _report_progress(self, answer: Answer, done: int, of: int) -> None:
        for report in answer.progress_reports(done, of):
            call_soon(self._loop, self._queue.put_nowait, (answer, report))

    def _finish(self, answer: Answer, task: asyncio.Task[None]) -> None:
        # The slot is free before the client learns that its answer is complete.
        self._queue.put_nowait((answer, None if task.cancelled() else task.exception()))
