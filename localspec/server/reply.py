"""Replies: one JSON object, or events during generation."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from localspec.server.answers import SILENCE, Answer, AnswerPart, Answers
from localspec.server.failures import ApiError, as_api_error, error_body

Value = TypeVar("Value")
Event = Mapping[str, Any]

_ENDS = "\x85\u2028\u2029"
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in _ENDS}
"""Escapes for line ends at which some clients split a stream, as Python's `splitlines` does."""


def as_json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return (text.translate(_LINE_ENDS) if any(map(text.__contains__, _ENDS)) else text).encode()


def event(value: Event) -> bytes:
    return b"data: " + as_json(value) + b"\n\n"


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(as_json(value), status, headers, "application/json")


def streaming_response(
    parts: AsyncGenerator[bytes, None], media_type: str = "text/event-stream"
) -> Response:
    """Return a response that streams the parts until the client disconnects."""
    return StreamingResponse(parts, headers={"X-Accel-Buffering": "no"}, media_type=media_type)


class Reply(ABC):
    """Formats the answers to one request in a protocol, as one object or as events. `ping` is sent
    after some seconds without output, `last` at the end of a stream."""

    media_type: ClassVar[str] = "text/event-stream"
    ping: ClassVar[bytes] = b": still there\n\n"
    last: ClassVar[bytes] = b""

    def __init__(self, answers: Answers, *, streamed: bool | None) -> None:
        self.engine, self.model = answers.engine, answers.model
        self.answers, self.answer = answers.all, answers.all[0]
        self.streamed = bool(streamed)
        self._parts = answers.parts

    def begin(self) -> Iterable[Event]:
        return ()

    @abstractmethod
    def events_of(self, part: AnswerPart) -> Iterable[Event]: ...

    def end(self) -> Iterable[Event]:
        return ()

    def failed(self, error: ApiError) -> Event:
        return error_body(self._path, error)

    @abstractmethod
    def whole(self) -> Any: ...

    def encode(self, value: Event) -> bytes:
        return event(value)

    def thought_tokens(self, answer: Answer) -> int:
        """Count the tokens of an answer's thoughts; incomplete characters may count as fewer."""
        tokens = self.engine.model.vocabulary.tokenize(answer.thought)
        return min(len(tokens), answer.stream.stats.generated_tokens)

    async def response(self, request: Request) -> Response:
        """Return the response, streamed or not; ClientGone if the client disconnected."""
        self._path = request.url.path
        if self.streamed:
            return streaming_response(self._encoded_events(), self.media_type)

        async def run() -> None:
            async for _ in self._events():
                pass

        await while_connected(request, run())
        return await asyncio.to_thread(lambda: json_response(self.whole()))

    async def _events(self) -> AsyncGenerator[Event | None, None]:
        for one in self.begin():
            yield one
        sent = monotonic()
        async for part in self._parts():
            for one in () if part is None else self.events_of(part):
                yield one
                sent = monotonic()
            if part is None or monotonic() - sent >= SILENCE:  # also while parts are not shown
                yield None
                sent = monotonic()
        for one in self.end():
            yield one

    async def _encoded_events(self) -> AsyncGenerator[bytes, None]:
        try:
            async for one in self._events():
                yield self.ping if one is None else self.encode(one)
            if self.last:
                yield self.last
        except Exception as error:
            yield self.encode(self.failed(as_api_error(error)))


class NamedEvents(Reply):
    def encode(self, value: Event) -> bytes:
        return f"event: {value['type']}\n".encode() + event(value)


class ClientGone(Exception):
    """The client disconnected."""


async def while_connected(request: Request, work: Awaitable[Value]) -> Value:
    """Await work; if the client disconnects first, cancel it and raise ClientGone."""

    async def disconnected() -> None:  # the body was read before
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watching, working = asyncio.ensure_future(disconnected()), asyncio.ensure_future(work)
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
