"""`/v1/chat/completions`."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from localspec import Engine
from localspec.prompting.prompt import Tokens
from localspec.server.answer import Answers, Ask
from localspec.server.conversation import AnswerMessage, AnswerSaid, Call, Turn, said, turn_of
from localspec.server.events import DONE, Streamed, as_json, event, while_there
from localspec.server.failures import ApiError, as_api_error, openai_body
from localspec.server.figures import chat_logprobs, timings, usage
from localspec.server.llama_cpp.texts import prompt_of
from localspec.server.openai.chat_wire import (
    ChatRequest,
    CountRequest,
    grammar_of,
    messages_of,
    schema_of,
    text_of,
    tools_of,
)
from localspec.server.pieces import CallArguments, CallBegins, Piece, Text, Thought
from localspec.server.service import FINGERPRINT, Service
from localspec.server.speculation import Speculation
from localspec.server.tools import ToolChoice, chosen
from localspec.server.wire import sampling_of, stops_of


async def chat_completions(service: Service, request: Request) -> ASGIApp:
    """Answer a conversation."""
    wanted = await service.read(request, ChatRequest)
    engine = await service.open(wanted.model)
    turn = await _turn(service, engine, wanted)
    asks = [
        replace(turn.ask, sampling=sampling_of(wanted, service.defaults, engine, choice=number))
        for number in range(wanted.n or 1)
    ]
    answers = await service.begin(engine, asks)
    reply = ChatReply(engine, service.host.name, wanted, turn, answers)
    if wanted.stream:
        return Streamed(reply.events(), answers.close)
    try:
        whole = await while_there(request.receive, reply.whole())
    finally:
        answers.close()
    return Response(as_json(whole), media_type="application/json")


async def _turn(service: Service, engine: Engine, wanted: ChatRequest) -> Turn:
    tools = chosen(
        tools_of(wanted.tools), wanted.tool_choice, several=bool(wanted.parallel_tool_calls)
    )
    schema = schema_of(wanted)
    if tools.tools and (schema or wanted.grammar or wanted.regex):
        if tools.must:
            raise ApiError(400, "response_format and a required call of a tool exclude each other.")
        tools = ToolChoice()  # the format leaves no room for a call
    if wanted.top_logprobs and not wanted.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs.", param="top_logprobs")
    ask = Ask(
        prompt="",
        max_tokens=service.longest(wanted.longest),
        stop=stops_of(wanted.stop),
        sampling=service.defaults,
        grammar=grammar_of(wanted),
        json_schema=schema,
        regex=wanted.regex or None,
        logprobs=(wanted.top_logprobs or 0) if wanted.logprobs else None,
        prediction=text_of(wanted.prediction.content) if wanted.prediction else "",
        reuse=wanted.cache_prompt is not False,
        shift=service.shift(wanted.n_keep, wanted.n_discard),
        reports=wanted.reports,
    )
    messages = messages_of(wanted.messages, sees_images=engine.prompts.sees_images)
    return await turn_of(
        engine,
        messages,
        ask,
        tools,
        more=service.variables(wanted.chat_template_kwargs, effort=wanted.reasoning_effort),
        begins=wanted.add_generation_prompt,
        goes_on=wanted.continue_final_message,
    )


async def input_tokens(service: Service, request: Request) -> Response:
    """How many tokens the prompt of a conversation has."""
    wanted = await service.read(request, CountRequest)
    engine = await service.open(wanted.model)
    tools = chosen(tools_of(wanted.tools), "auto", several=False)
    messages = messages_of(wanted.messages, sees_images=engine.prompts.sees_images)
    turn = await turn_of(
        engine, messages, Ask(prompt=""), tools, more=service.variables(wanted.chat_template_kwargs)
    )
    assert isinstance(turn.ask.prompt, Tokens)
    counted = {"object": "response.input_tokens", "input_tokens": len(turn.ask.prompt)}
    return Response(as_json(counted), media_type="application/json")


class ChatReply:
    """The answers to a request, in OpenAI's words."""

    def __init__(
        self, engine: Engine, model: str, wanted: ChatRequest, turn: Turn, answers: Answers
    ) -> None:
        self._engine = engine
        self._wanted = wanted
        self._answers = answers
        self._messages = [AnswerMessage() for _ in answers.streams]
        self._said = said(answers, [turn.reader() for _ in answers.streams])
        followed = answers.streams if wanted.speculation else []
        self._speculation = [Speculation(engine, stream) for stream in followed]
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
        }

    async def whole(self) -> dict[str, Any]:
        """The reply, once all is said."""
        async for part in self._said:
            message = self._messages[part.number]
            message.told.extend(part.told)
            for piece in part.pieces:
                message.add(piece)
        stream = self._answers.streams[0]
        verbose = {"__verbose": {"prompt": prompt_of(stream, self._engine)}}
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(number) for number in range(len(self._messages))],
            "usage": self._usage(),
            "timings": timings(stream.stats),
            **(verbose if self._wanted.verbose else {}),
        }

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The reply as events, while it is said."""
        try:
            for number in range(len(self._messages)):
                yield self._chunk(number, {"role": "assistant", "content": ""})
            async for part in self._said:
                for chunk in self._deltas(part):
                    yield chunk
            if self._wanted.stream_options and self._wanted.stream_options.include_usage:
                figures = {"timings": timings(self._answers.streams[0].stats)}
                yield event({**self._shell(), "choices": [], "usage": self._usage(), **figures})
            yield DONE
        except Exception as error:
            yield event(openai_body(as_api_error(error)))

    def _deltas(self, part: AnswerSaid) -> list[bytes]:
        message = self._messages[part.number]
        found = []
        told = list(part.told)
        if part.reading is not None:
            progress = {"prompt_progress": part.reading.as_llama_cpp()}
            found.append(self._chunk(part.number, {}, more=progress))
        speculation = self._speculation[part.number] if self._speculation else None
        report: dict[str, Any] = {}
        if speculation is not None and part.chunk is not None:
            report = {"speculation": speculation.step(part.chunk)}
        for piece in part.pieces or ([Text("")] if told or report else []):
            message.add(piece)
            delta = _delta(piece, message.calls)
            more = {**self._pace(part.number), **report}
            found.append(self._chunk(part.number, delta, told=told, more=more))
            told, report = [], {}
        if part.complete:
            finish = self._finish(part.number)
            more = {"timings": timings(self._answers.streams[part.number].stats)}
            if speculation is not None:
                more["speculation"] = speculation.figures()
            found.append(self._chunk(part.number, {}, finish=finish, more=more))
        return found

    def _pace(self, number: int) -> dict[str, Any]:
        if not self._wanted.timings_per_token:
            return {}
        return {"timings": timings(self._answers.streams[number].stats)}

    def _shell(self) -> dict[str, Any]:
        return {**self._head, "object": "chat.completion.chunk"}

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        told: Sequence[Any] = (),
        more: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": finish}
        if told:
            choice["logprobs"] = {"content": chat_logprobs(told, self._engine), "refusal": None}
        return event({**self._shell(), "choices": [choice], **(more or {})})

    def _choice(self, number: int) -> dict[str, Any]:
        message = self._messages[number]
        said: dict[str, Any] = {"role": "assistant", "content": message.text, "refusal": None}
        if message.thought:
            said["reasoning_content"] = message.thought
        if message.calls:
            said["tool_calls"] = [call.as_openai() for call in message.calls]
            said["content"] = message.text or None
        logprobs = None
        if self._wanted.logprobs:
            logprobs = {"content": chat_logprobs(message.told, self._engine), "refusal": None}
        return {
            "index": number,
            "message": said,
            "logprobs": logprobs,
            "finish_reason": self._finish(number),
        }

    def _finish(self, number: int) -> str:
        reason = self._answers.streams[number].finish_reason
        if reason == "length":
            return "length"
        return "tool_calls" if self._messages[number].calls else "stop"

    def _usage(self) -> dict[str, Any]:
        return usage([stream.stats for stream in self._answers.streams])


def _delta(piece: Piece, calls: Sequence[Call]) -> dict[str, Any]:
    """A piece as what is new in the message; `calls` are those so far, its own included."""
    if isinstance(piece, Text):
        return {"content": piece.text}
    if isinstance(piece, Thought):
        return {"reasoning_content": piece.text}
    call: dict[str, Any] = {"index": len(calls) - 1}
    if isinstance(piece, CallBegins):
        begun = calls[-1]
        call |= {"id": begun.id, "type": "function"}
        call["function"] = {"name": begun.name, "arguments": ""}
    elif isinstance(piece, CallArguments):
        call["function"] = {"arguments": piece.text}
    return {"tool_calls": [call]}
