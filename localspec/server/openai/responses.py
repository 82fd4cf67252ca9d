"""`/v1/responses`: OpenAI's newer protocol, without anything kept."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec.server.answer import Ask
from localspec.server.conversation import Call, Talk, turn_of
from localspec.server.events import Streamed, as_json, event, while_there
from localspec.server.failures import as_api_error
from localspec.server.openai.chat_wire import messages_of, schema_of
from localspec.server.openai.responses_wire import (
    ResponsesRequest,
    format_in,
    messages_in,
    require_stateless,
    tools_in,
)
from localspec.server.pieces import CallArguments, CallBegins, Text, Thought
from localspec.server.service import Service
from localspec.server.tools import ToolChoice, chosen
from localspec.server.wire import SamplingFields, sampling_of


async def responses(service: Service, request: Request) -> ASGIApp:
    """Answer an input."""
    wanted = await service.read(request, ResponsesRequest)
    require_stateless(wanted)
    engine = await service.open(wanted.model)
    schema = schema_of(format_in(wanted))
    tools = chosen(tools_in(wanted), wanted.tool_choice, several=bool(wanted.parallel_tool_calls))
    fields = SamplingFields(temperature=wanted.temperature, top_p=wanted.top_p)
    ask = Ask(
        prompt="",
        max_tokens=service.longest(wanted.max_output_tokens),
        sampling=sampling_of(fields, service.defaults, engine),
        json_schema=schema,
        shift=service.shift(None),
    )
    told = messages_of(messages_in(wanted), sees_images=engine.prompts.sees_images)
    more = service.variables(effort=wanted.reasoning.effort if wanted.reasoning else None)
    turn = await turn_of(engine, told, ask, ToolChoice() if schema else tools, more=more)
    answers = await service.begin(engine, [turn.ask])
    reply = ResponseReply(Talk(answers, turn), service.host.name, wanted)
    if wanted.stream:
        return Streamed(reply.events(), answers.close)
    try:
        whole = await while_there(request.receive, reply.whole())
    finally:
        answers.close()
    return Response(as_json(whole), media_type="application/json")


class ResponseReply:
    """The answer to a request, as items."""

    def __init__(self, talk: Talk, model: str, wanted: ResponsesRequest) -> None:
        self._talk = talk
        self._numbers = itertools.count()
        self._done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._head = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "instructions": wanted.instructions,
            "metadata": {},
            "parallel_tool_calls": bool(wanted.parallel_tool_calls),
            "temperature": wanted.temperature,
            "top_p": wanted.top_p,
            "tool_choice": wanted.tool_choice or "auto",
            "tools": [{**tool.model_dump(), "strict": False} for tool in wanted.tools or ()],
            "error": None,
        }

    async def whole(self) -> dict[str, Any]:
        """The reply, once all is said."""
        async for _ in self._items():
            pass
        return self._response()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as events, while it is said."""
        try:
            for kind in ("response.created", "response.in_progress"):
                yield self._event(kind, response=self._response(status="in_progress"))
            async for told in self._items():
                yield told
            finished = self._response()
            kind = "response.completed"
            if finished["status"] == "incomplete":
                kind = "response.incomplete"
            yield self._event(kind, response=finished)
        except Exception as error:
            failed = as_api_error(error)
            why = {"code": failed.kind, "message": failed.message}
            response = {**self._response(status="failed"), "error": why}
            yield self._event("response.failed", response=response)

    async def _items(self) -> AsyncGenerator[bytes, None]:
        async for piece in self._talk.pieces():
            kind = "function_call"
            if isinstance(piece, Text):
                kind = "message"
            elif isinstance(piece, Thought):
                kind = "reasoning"
            if self._open is None or kind != self._open["type"] or isinstance(piece, CallBegins):
                for told in self._close():
                    yield told
                for told in self._begin(kind):
                    yield told
            assert self._open is not None
            if isinstance(piece, (Text, Thought)):
                self._open["content"][0]["text"] += piece.text
                part = "output_text" if kind == "message" else "reasoning_text"
                yield self._part(f"response.{part}.delta", delta=piece.text)
            elif isinstance(piece, CallArguments):
                self._open["arguments"] += piece.text
                yield self._about("response.function_call_arguments.delta", delta=piece.text)
        for told in self._close():
            yield told

    def _begin(self, kind: str) -> list[bytes]:
        """Open an item."""
        item: dict[str, Any] = {"type": kind, "status": "in_progress"}
        if kind == "function_call":
            call: Call = self._talk.message.calls[-1]
            item |= {"id": f"fc_{secrets.token_hex(12)}", "call_id": call.id}
            item |= {"name": call.name, "arguments": ""}
            self._open = item
            return [self._added()]
        if kind == "reasoning":
            item |= {"id": f"rs_{secrets.token_hex(12)}", "summary": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item |= {"id": f"msg_{secrets.token_hex(12)}", "role": "assistant"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        self._open = {**item, "content": []}
        told = [self._added()]
        self._open["content"] = [part]
        return [*told, self._part("response.content_part.added", part=dict(part))]

    def _close(self) -> list[bytes]:
        """End the item that is open, if one is."""
        item = self._open
        if item is None:
            return []
        told = []
        if item["type"] == "function_call":
            arguments, name = item["arguments"] or "{}", item["name"]
            item["arguments"] = arguments
            done = "response.function_call_arguments.done"
            told.append(self._about(done, arguments=arguments, name=name))
        else:
            (part,) = item["content"]
            told.append(self._part(f"response.{part['type']}.done", text=part["text"]))
            told.append(self._part("response.content_part.done", part=part))
        item["status"] = "completed"
        told.append(
            self._event("response.output_item.done", output_index=len(self._done), item=item)
        )
        self._done.append(item)
        self._open = None
        return told

    def _added(self) -> bytes:
        return self._event(
            "response.output_item.added", output_index=len(self._done), item=self._open
        )

    def _about(self, kind: str, **members: Any) -> bytes:
        """An event about the item that is open."""
        assert self._open is not None
        return self._event(kind, item_id=self._open["id"], output_index=len(self._done), **members)

    def _part(self, kind: str, **members: Any) -> bytes:
        """An event about its content."""
        if kind.startswith("response.output_text"):
            members["logprobs"] = []
        return self._about(kind, content_index=0, **members)

    def _event(self, kind: str, **members: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._numbers), **members}, kind)

    def _response(self, status: str | None = None) -> dict[str, Any]:
        stats = self._talk.stream.stats
        cut = status is None and self._talk.reason == "length"
        usage = None
        if status is None:
            usage = {
                "input_tokens": stats.prompt_tokens,
                "input_tokens_details": {"cached_tokens": stats.cached_tokens},
                "output_tokens": stats.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": stats.prompt_tokens + stats.generated_tokens,
            }
        return {
            **self._head,
            "status": status or ("incomplete" if cut else "completed"),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": list(self._done),
            "usage": usage,
        }
