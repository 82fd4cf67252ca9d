"""`/v1/messages`, and how many tokens one has."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec import Engine
from localspec.prompting.prompt import Tokens
from localspec.server.answer import Ask
from localspec.server.anthropic.wire import (
    Conversation,
    MessagesRequest,
    messages_in,
    schema_in,
    tools_in,
)
from localspec.server.conversation import AnswerMessage, Talk, Turn, turn_of
from localspec.server.events import Streamed, as_json, event, while_there
from localspec.server.failures import ApiError, anthropic_body, as_api_error
from localspec.server.openai.chat_wire import messages_of
from localspec.server.pieces import CallArguments, CallBegins, Piece, Text, Thought
from localspec.server.service import Service
from localspec.server.tools import ToolChoice
from localspec.server.wire import SamplingFields, sampling_of, stops_of

_REASONS = {
    "length": "max_tokens",
    "calls": "tool_use",
    "word": "stop_sequence",
    "stop": "end_turn",
}
_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


async def messages(service: Service, request: Request) -> ASGIApp:
    """Answer a conversation."""
    wanted = await service.read(request, MessagesRequest)
    engine = await service.open(wanted.model)
    fields = SamplingFields(temperature=wanted.temperature, top_p=wanted.top_p, top_k=wanted.top_k)
    ask = Ask(
        prompt="",
        max_tokens=service.longest(wanted.max_tokens),
        stop=stops_of(wanted.stop_sequences),
        sampling=sampling_of(fields, service.defaults, engine),
        json_schema=schema_in(wanted),
        shift=service.shift(None),
    )
    tools = tools_in(wanted)
    if ask.json_schema is not None:
        if tools.must:
            raise ApiError(
                400, "An output format and a required call of a tool exclude each other."
            )
        tools = ToolChoice()  # the format leaves no room for a call
    turn = await _turn(service, engine, wanted, ask, tools)
    answers = await service.begin(engine, [turn.ask])
    reply = MessageReply(Talk(answers, turn), service.host.name)
    if wanted.stream:
        return Streamed(reply.events(), answers.close, ping=_PING)
    try:
        whole = await while_there(request.receive, reply.whole())
    finally:
        answers.close()
    return Response(as_json(whole), media_type="application/json")


async def count_tokens(service: Service, request: Request) -> ASGIApp:
    """How many tokens the prompt of a conversation has."""
    wanted = await service.read(request, Conversation)
    engine = await service.open(wanted.model)
    turn = await _turn(service, engine, wanted, Ask(prompt=""), tools_in(wanted))
    assert isinstance(turn.ask.prompt, Tokens)
    counted = {"input_tokens": len(turn.ask.prompt)}
    return Response(as_json(counted), media_type="application/json")


async def _turn(
    service: Service, engine: Engine, wanted: Conversation, ask: Ask, tools: ToolChoice
) -> Turn:
    told = messages_of(messages_in(wanted), sees_images=engine.prompts.sees_images)
    thinking = wanted.thinking
    said = None if thinking is None else {"enable_thinking": thinking.type != "disabled"}
    more = service.variables(said)
    return await turn_of(engine, told, ask, tools, more=more)


class MessageReply:
    """The answer to a request, in Anthropic's words."""

    def __init__(self, talk: Talk, model: str) -> None:
        self._talk = talk
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }

    async def whole(self) -> dict[str, Any]:
        """The reply, once all is said."""
        message = await self._talk.whole()
        return {**self._head, "content": _blocks(message), **self._ending(), "usage": self._usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as events, while it is said."""
        try:
            begun: dict[str, Any] = {
                **self._head,
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {**self._usage(), "output_tokens": 0},
            }
            yield _event("message_start", message=begun)
            index, open_block = -1, ""
            async for piece in self._talk.pieces():
                kind = _kind(piece)
                if kind != open_block or isinstance(piece, CallBegins):
                    for told in _closing(open_block, index):
                        yield told
                    index, open_block = index + 1, kind
                    block = self._opened(kind)
                    yield _event("content_block_start", index=index, content_block=block)
                if not isinstance(piece, CallBegins):
                    yield _event("content_block_delta", index=index, delta=_delta(piece))
            for told in _closing(open_block, index):
                yield told
            yield _event("message_delta", delta=self._ending(), usage=self._usage())
            yield _event("message_stop")
        except Exception as error:
            body = anthropic_body(as_api_error(error))
            yield event(body, "error")

    def _opened(self, kind: str) -> dict[str, Any]:
        if kind == "tool_use":
            call = self._talk.message.calls[-1]
            return {"type": kind, "id": call.id, "name": call.name, "input": {}}
        return {"type": "text", "text": ""} if kind == "text" else _thinking("")

    def _ending(self) -> dict[str, Any]:
        return {
            "stop_reason": _REASONS[self._talk.reason],
            "stop_sequence": self._talk.stream.stopped,
        }

    def _usage(self) -> dict[str, Any]:
        stats = self._talk.stream.stats
        return {
            "input_tokens": stats.prompt_tokens - stats.cached_tokens,
            "cache_read_input_tokens": stats.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": stats.generated_tokens,
        }


def _event(kind: str, **members: Any) -> bytes:
    return event({"type": kind, **members}, kind)


def _closing(kind: str, index: int) -> Iterator[bytes]:
    """The end of a block of a kind, "" for none; clients wait for the signature of a thought."""
    if kind == "thinking":
        delta = {"type": "signature_delta", "signature": ""}
        yield _event("content_block_delta", index=index, delta=delta)
    if kind:
        yield _event("content_block_stop", index=index)


def _kind(piece: Piece) -> str:
    """The kind of block that a piece belongs to."""
    if isinstance(piece, (CallBegins, CallArguments)):
        return "tool_use"
    return "text" if isinstance(piece, Text) else "thinking"


def _delta(piece: Piece) -> dict[str, Any]:
    if isinstance(piece, Text):
        return {"type": "text_delta", "text": piece.text}
    if isinstance(piece, Thought):
        return {"type": "thinking_delta", "thinking": piece.text}
    assert isinstance(piece, CallArguments)
    return {"type": "input_json_delta", "partial_json": piece.text}


def _thinking(text: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _blocks(message: AnswerMessage) -> list[dict[str, Any]]:
    """The blocks of a whole answer."""
    found: list[dict[str, Any]] = []
    if message.thought:
        found.append(_thinking(message.thought))
    if message.text:
        found.append({"type": "text", "text": message.text})
    for call in message.calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name}
        found.append({**block, "input": _object(call.arguments)})
    return found


def _object(arguments: str) -> Any:
    """Arguments as an object; where the answer was cut off, what it was is lost."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
