"""`/api/chat` and `/api/generate`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, ClassVar

from localspec import Engine
from localspec.prompting.pieces import Text, Thought
from localspec.prompting.prompt import Tokens
from localspec.server.answers import Answers, Ask, Part
from localspec.server.conversation import Chat, ask_of
from localspec.server.failures import ApiError
from localspec.server.figures import chat_logprobs
from localspec.server.model_host import ModelHost
from localspec.server.ollama.wire import (
    ChatRequest,
    GenerateRequest,
    OllamaMessage,
    OllamaRequest,
)
from localspec.server.openai.messages import messages_of, tools_of
from localspec.server.pieces import AnswerMessage
from localspec.server.reply import Event, Reply, as_json
from localspec.server.service import Service
from localspec.server.tools import ToolChoice, chosen


async def chat(service: Service, wanted: ChatRequest) -> Any:
    if wanted.unloads and not wanted.messages:
        return await _unloaded(service, wanted, "message")
    engine = await service.open(wanted.model)
    if not wanted.messages:
        return _empty(service.host, "message", "load")
    if wanted.images:
        raise ApiError(400, "Images go with a message. Put them into one.")
    tools = chosen(tools_of(wanted.tools), "auto", several=False)
    ask = await _with_prompt(service, engine, wanted, wanted.messages, tools)
    return OllamaReply(await service.begin(engine, ask), wanted, "message")


async def generate(service: Service, wanted: GenerateRequest) -> Any:
    """Answer a prompt, through the template unless it is raw."""
    if wanted.unloads and not wanted.prompt:
        return await _unloaded(service, wanted, "response")
    engine = await service.open(wanted.model)
    if wanted.suffix:
        raise ApiError(400, "suffix is not supported here. Use /infill.")
    if not wanted.prompt:
        return _empty(service.host, "response", "load")
    if wanted.raw and (wanted.template or wanted.system or wanted.context):
        raise ApiError(400, "A raw prompt has no template, system or context. Leave them out.")
    if wanted.context and wanted.images:
        raise ApiError(400, "Images and a context exclude each other. Ask at /api/chat.")
    if wanted.template:
        raise ApiError(400, "The model's own template is used. Leave template out, or send raw.")
    if wanted.raw or engine.model.chat_template is None:
        if wanted.images:
            raise ApiError(400, "Images need the model's chat template. Leave raw out.")
        ask = wanted.ask(service, engine, wanted.prompt)
    else:
        messages = [OllamaMessage(role="user", content=wanted.prompt, images=wanted.images)]
        if wanted.system:
            messages.insert(0, OllamaMessage(role="system", content=wanted.system))
        ask = await _with_prompt(service, engine, wanted, messages, ToolChoice())
        if wanted.context:
            ask = replace(ask, prompt=_behind(wanted.context, tuple(ask.prompt), engine))
    return OllamaReply(await service.begin(engine, ask), wanted, "response")


def _behind(context: Sequence[int], prompt: Sequence[Any], engine: Engine) -> Tokens:
    """A prompt after the tokens of an earlier one and its answer."""
    vocabulary = engine.model.vocabulary
    again = vocabulary.adds_bos and prompt[0] == vocabulary.bos
    return Tokens([*context, *prompt[again:]])


async def _with_prompt(
    service: Service,
    engine: Engine,
    wanted: OllamaRequest,
    messages: list[OllamaMessage],
    tools: ToolChoice,
) -> Ask:
    openai = [message.as_openai() for message in messages]
    effort = wanted.think if isinstance(wanted.think, str) else None
    thinks = {"enable_thinking": wanted.think} if isinstance(wanted.think, bool) else None
    chat = Chat(
        messages=messages_of(openai, sees_images=engine.prompts.sees_images),
        ask=wanted.ask(service, engine),
        tools=tools,
        variables=service.variables(thinks, effort=effort),
    )
    return await ask_of(engine, chat)


async def _unloaded(service: Service, wanted: OllamaRequest, member: str) -> dict[str, Any]:
    models = service.common.models
    host = models.find(wanted.model)
    await models.unload(host)
    return _empty(host, member, "unload")


def _empty(host: ModelHost, member: str, reason: str) -> dict[str, Any]:
    head = {"model": host.name, "created_at": _now()}
    return {**head, **_content(member, AnswerMessage()), "done": True, "done_reason": reason}


class OllamaReply(Reply):
    """The answer in ollama's format, with the text in `member`, "message" or "response"."""

    media_type: ClassVar[str] = "application/x-ndjson"
    ping: ClassVar[bytes] = b""

    def __init__(self, answers: Answers, wanted: OllamaRequest, member: str) -> None:
        super().__init__(answers, streamed=wanted.stream is not False)
        self._member, self._wanted = member, wanted
        self._continues = isinstance(wanted, GenerateRequest) and not wanted.raw

    def events_of(self, part: Part) -> Iterable[Event]:
        message = AnswerMessage(logprobs=[*part.logprobs])
        for piece in part.pieces:
            self.message.add(piece)
            if isinstance(piece, Text | Thought):
                message.add(piece)
        if message.text or message.thought or message.logprobs:
            yield self._line(message)
        if part.complete and self.message.calls:  # which come when they are complete
            yield self._line(AnswerMessage(calls=self.message.calls))

    def end(self) -> Iterable[Event]:
        yield {**self._line(AnswerMessage()), **self._ending()}

    def failed(self, error: ApiError) -> Event:
        return {"error": error.message}

    def whole(self) -> Any:
        return {**self._line(self.message), **self._ending()}

    def encoded(self, value: Event) -> bytes:
        return as_json(value) + b"\n"

    def _line(self, message: AnswerMessage) -> Event:
        head = {"model": self.answers.model, "created_at": _now()}
        told = chat_logprobs(message.logprobs, self.answers.engine)
        logprobs = {"logprobs": told} if self._wanted.logprobs and told else {}
        return {**head, **_content(self._member, message), "done": False, **logprobs}

    def _ending(self) -> Event:
        stats = self.stream.stats
        load = round(stats.calibration_seconds * 1e9)  # once, as loading is
        prompt, decode = round(stats.prompt_seconds * 1e9), round(stats.decode_seconds * 1e9)
        return {
            "done": True,
            "done_reason": "length" if self.stream.finish_reason == "length" else "stop",
            "total_duration": load + prompt + decode,
            "load_duration": load,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": stats.generated_tokens,
            "eval_duration": decode,
            **({"context": [*self.stream.context]} if self._continues else {}),
        }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _content(member: str, message: AnswerMessage) -> dict[str, Any]:
    thinking = {"thinking": message.thought} if message.thought else {}
    if member == "response":
        return {"response": message.text, **thinking}
    content: dict[str, Any] = {"role": "assistant", "content": message.text, **thinking}
    if message.calls:
        content["tool_calls"] = [
            {"function": {"name": call.name, "arguments": call.as_object()}}
            for call in message.calls
        ]
    return {"message": content}
