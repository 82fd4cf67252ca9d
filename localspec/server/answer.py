"""Answers: asked of the engine in threads, brought to the event loop chunk by chunk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from localspec import Chunk, Engine, SamplingParams, Stream
from localspec.decoding.session import ContextShift
from localspec.prompting.prompt import Prompt, Tokens
from localspec.server.activity import Activity
from localspec.server.gate import Gate
from localspec.server.reading import Reading, ReadingReports

Said = Chunk | Reading | BaseException | None
"""What the thread of an answer tells: a chunk, how far it has read, why it failed, or that it is
complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is wanted of the engine, whatever protocol it came in; see `Engine.stream`."""

    prompt: Prompt | Tokens
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
    """Whether the client wants to know how far the prompt is read."""
    messages: Sequence[Mapping[str, Any]] | None = None
    """What the prompt was made of, where that is a conversation."""


async def prepared(engine: Engine, ask: Ask, reports: ReadingReports | None = None) -> Stream:
    """The stream of an answer, not begun: the prompt is tokenized and everything is checked.

    Args:
        reports: is told how far the prompt is read.

    Raises:
        LocalspecError: it cannot be answered, see `Engine.stream`.
    """
    return await asyncio.to_thread(
        engine.stream,
        ask.prompt,
        max_tokens=ask.max_tokens,
        stop=ask.stop,
        sampling=ask.sampling,
        grammar=ask.grammar,
        json_schema=ask.json_schema,
        regex=ask.regex,
        logprobs=ask.logprobs,
        as_sampled=ask.as_sampled,
        prediction=ask.prediction,
        reuse=ask.reuse,
        shift=ask.shift,
        thinks=ask.thinks,
        progress=reports,
    )


class Answers:
    """The answers to one request: each waits for its turn and runs in a thread of its own.

    What they say is kept until it is fetched, at most as much as the context holds: a client that
    reads slowly does not keep the engine. Close it, whatever happens.

    Args:
        streams: prepared, not begun.
        gate: where they queue.
        activity: is told what happens.
        ended: told the numbers of answers that came to their end.
        reports: of each answer; what they tell is among the chunks.

    Raises:
        ApiError: the queue is full.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        gate: Gate,
        activity: Activity,
        ended: Callable[[int], object] = lambda number: None,
        reports: Sequence[ReadingReports | None] = (),
    ) -> None:
        self.streams = list(streams)
        self._reports = [*reports] or [None] * len(self.streams)
        for number, one in enumerate(self._reports):
            if one is not None:
                one.connect(self.streams[number], partial(self._put, number))
        self._activity = activity
        self._told_end = ended
        self._loop = asyncio.get_running_loop()
        self._said: asyncio.Queue[tuple[int, Said]] = asyncio.Queue()
        self._begun = [False] * len(self.streams)
        self._closed = False
        self._tickets = gate.join(len(self.streams))
        for number, ticket in enumerate(self._tickets):
            ticket.turn.add_done_callback(partial(self._begin, number))

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk | Reading | None], None]:
        """Numbers of answers and what they said; None where one is complete.

        Raises:
            LocalspecError: the engine failed.
        """
        going_on = len(self.streams)
        while going_on:
            number, said = await self._said.get()
            if isinstance(said, BaseException):
                raise said
            if said is None:
                going_on -= 1
            elif isinstance(said, Chunk) and said.step is not None:
                self._activity.stepped(said.step)
            yield number, said

    def close(self) -> None:
        """Stop what runs within a step, and leave the queue; harmless when repeated."""
        self._closed = True
        for begun, stream, ticket in zip(self._begun, self.streams, self._tickets, strict=True):
            if begun:
                stream.cancel()  # of no consequence where it is at its end
            else:
                ticket.leave()

    def _begin(self, number: int, turn: asyncio.Future[None]) -> None:
        if self._closed or turn.cancelled():
            return
        self._begun[number] = True
        ticket, stream = self._tickets[number], self.streams[number]
        assert ticket.slot is not None, "it is its turn"
        self._activity.began(ticket.slot, stream)
        threading.Thread(
            target=self._run, args=(number, ticket.slot), name="localspec-answer", daemon=True
        ).start()

    # In the thread of an answer

    def _run(self, number: int, slot: int) -> None:
        stream, reports = self.streams[number], self._reports[number]
        last: BaseException | None = None
        try:
            with stream:
                for chunk in stream:
                    if reports is not None:
                        reports.finish()
                    self._put(number, chunk)
        except BaseException as error:  # none may end the thread, or be lost with it
            last = error
        # The slot is free before the client can know that its answer is complete.
        self._tell(self._ended, number, slot)
        self._put(number, last)

    def _put(self, number: int, said: Said) -> None:
        self._tell(self._said.put_nowait, (number, said))

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(what, *arguments)

    def _ended(self, number: int, slot: int) -> None:
        seconds = self._activity.ended(slot, self.streams[number])
        self._told_end(number)
        self._tickets[number].leave(seconds)
