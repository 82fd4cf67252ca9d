"""`/api/chat` and `/api/generate`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec.server.conversation import AnswerMessage, Talk, Turn, turn_of
from localspec.server.events import Streamed, as_json, while_there
from localspec.server.failures import ApiError, as_api_error
from localspec.server.ollama.wire import (
    Asking,
    ChatRequest,
    GenerateRequest,
    OllamaMessage,
    ask_of,
    messages_in,
)
from localspec.server.openai.chat_wire import messages_of, tools_of
from localspec.server.pieces import Text, Thought
from localspec.server.service import Service
from localspec.server.tools import ToolChoice, chosen


async def chat(service: Service, request: Request) -> ASGIApp:
    """Answer a conversation."""
    wanted = await service.read(request, ChatRequest)
    engine = await service.open(wanted.model)
    if not wanted.messages:
        return _nothing(service, "message")
    if wanted.images:
        raise ApiError(400, "Images go with a message. Put them into one.")
    ask = ask_of(service, engine, wanted)
    tools = chosen(tools_of(wanted.tools), "auto", several=False)
    if ask.json_schema is not None:
        tools = ToolChoice()
    told = messages_of(messages_in(wanted.messages), sees_images=engine.prompts.sees_images)
    turn = await turn_of(engine, told, ask, tools, more=_variables(service, wanted))
    return await _replied(service, request, wanted, turn, "message")


async def generate(service: Service, request: Request) -> ASGIApp:
    """Answer a prompt, through the template unless it is raw."""
    wanted = await service.read(request, GenerateRequest)
    engine = await service.open(wanted.model)
    if wanted.suffix:
        raise ApiError(400, "suffix is not supported here. Use /infill.")
    if not wanted.prompt:
        return _nothing(service, "response")
    ask = ask_of(service, engine, wanted)
    if wanted.raw or engine.model.chat_template is None:
        if wanted.images:
            raise ApiError(400, "Images need the model's chat template. Leave raw out.")
        turn = Turn(replace(ask, prompt=wanted.prompt))
    else:
        said = [OllamaMessage(role="user", content=wanted.prompt, images=wanted.images)]
        if wanted.system:
            said.insert(0, OllamaMessage(role="system", content=wanted.system))
        sees = engine.prompts.sees_images
        told = messages_of(messages_in(said), sees_images=sees)
        turn = await turn_of(engine, told, ask, ToolChoice(), more=_variables(service, wanted))
    return await _replied(service, request, wanted, turn, "response")


def _variables(service: Service, wanted: Asking) -> dict[str, Any]:
    """Variables for the template."""
    if isinstance(wanted.think, str):
        return service.variables(effort=wanted.think)
    said = None if wanted.think is None else {"enable_thinking": wanted.think}
    return service.variables(said)


async def _replied(
    service: Service, request: Request, wanted: Asking, turn: Turn, member: str
) -> ASGIApp:
    answers = await service.begin(service.engine(), [turn.ask])
    reply = OllamaReply(Talk(answers, turn), service.host.name, member)
    if wanted.stream is not False:
        return Streamed(reply.lines(), answers.close, media_type="application/x-ndjson", ping=b"")
    try:
        whole = await while_there(request.receive, reply.whole())
    finally:
        answers.close()
    return Response(as_json(whole), media_type="application/json")


def _nothing(service: Service, member: str) -> Response:
    """What a request without a prompt gets: it only wants the model to be loaded."""
    told = _said(member, AnswerMessage())
    body = {**_head(service.host.name), **told, "done": True, "done_reason": "load"}
    return Response(as_json(body), media_type="application/json")


class OllamaReply:
    """The answer to a request, in ollama's words; `member` is where the text goes."""

    def __init__(self, talk: Talk, model: str, member: str) -> None:
        self._talk = talk
        self._model = model
        self._member = member

    async def whole(self) -> dict[str, Any]:
        """The reply, once all is said."""
        message = await self._talk.whole()
        return {**_head(self._model), **_said(self._member, message), **self._ending()}

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The reply as lines of JSON, while it is said; calls come when they are complete."""
        try:
            async for piece in self._talk.pieces():
                if isinstance(piece, (Text, Thought)):
                    message = AnswerMessage()
                    message.add(piece)
                    yield self._line(message)
            calls = self._talk.message.calls
            if calls:
                yield self._line(AnswerMessage(calls=calls))
            last = {**_head(self._model), **_said(self._member, AnswerMessage()), **self._ending()}
            yield as_json(last) + b"\n"
        except Exception as error:
            yield as_json({"error": as_api_error(error).message}) + b"\n"

    def _line(self, message: AnswerMessage) -> bytes:
        body = {**_head(self._model), **_said(self._member, message), "done": False}
        return as_json(body) + b"\n"

    def _ending(self) -> dict[str, Any]:
        stats = self._talk.stream.stats
        measured = round(stats.calibration_seconds * 1e9)  # once, as loading is
        prompt, decode = round(stats.prompt_seconds * 1e9), round(stats.decode_seconds * 1e9)
        return {
            "done": True,
            "done_reason": "length" if self._talk.reason == "length" else "stop",
            "total_duration": measured + prompt + decode,
            "load_duration": measured,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": stats.generated_tokens,
            "eval_duration": decode,
        }


def _head(model: str) -> dict[str, Any]:
    return {"model": model, "created_at": datetime.now(timezone.utc).isoformat()}


def _said(member: str, message: AnswerMessage) -> dict[str, Any]:
    if member == "response":
        thinking = {"thinking": message.thought} if message.thought else {}
        return {"response": message.text, **thinking}
    said: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.thought:
        said["thinking"] = message.thought
    if message.calls:
        said["tool_calls"] = [
            {"function": {"name": call.name, "arguments": _object(call.arguments)}}
            for call in message.calls
        ]
    return {"message": said}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
