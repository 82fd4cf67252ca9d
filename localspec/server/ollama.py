"""ollama's protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from localspec import Engine
from localspec.gguf.names import quant_of
from localspec.gguf.reader import read_gguf
from localspec.prompting.pieces import Text, Thought
from localspec.prompting.prompt import Tokens
from localspec.prompting.reasoning import reasons
from localspec.server.answer_figures import chat_logprobs
from localspec.server.answers import Answers, Ask, Part
from localspec.server.chat_prompt import Chat, ask_of
from localspec.server.failures import ApiError
from localspec.server.llama_cpp.tokenize import settings_of
from localspec.server.model_hosts import ModelHost
from localspec.server.openai.messages import (
    Content,
    ContentPart,
    FunctionTool,
    Message,
    ToolCall,
    messages_of,
    tools_of,
)
from localspec.server.pieces import AnswerMessage
from localspec.server.reply import Event, Reply, as_json
from localspec.server.service import Service
from localspec.server.tools import chosen
from localspec.server.wire import Record, Sampling, sampling_of, stops_of

VERSION = "0.12.0"
_NO_JSON = ("nan", "inf", "-inf")


class Options(Sampling):
    stop: str | list[str] | None = None
    num_predict: int | None = None
    num_keep: int | None = None


class OllamaMessage(Record):
    role: str
    content: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    thinking: str | None = None

    def as_openai(self) -> Message:
        return Message(
            role=self.role,
            content=_with_images(self.content or "", self.images),
            name=self.tool_name,
            tool_calls=self.tool_calls or None,
            tool_call_id=self.tool_call_id,
            reasoning_content=self.thinking,
        )


class OllamaRequest(Record):
    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    images: list[str] | None = None
    keep_alive: int | float | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def unloads(self) -> bool:
        """Whether the model is to go, which is asked for without a prompt."""
        return self.keep_alive is not None and str(self.keep_alive).rstrip("hms") == "0"

    def ask(self, service: Service, engine: Engine, prompt: str = "") -> Ask:
        options = self.options or Options()
        return Ask(
            prompt=prompt,
            max_tokens=service.longest(options.num_predict or None),  # 0 sets no limit here
            stop=stops_of(options.stop),
            sampling=sampling_of(options, service.defaults, engine),
            json_schema=_schema(self.format),
            shift=service.shift(options.num_keep),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
        )

    def of(
        self,
        messages: Sequence[OllamaMessage],
        service: Service,
        engine: Engine,
        tools: Sequence[FunctionTool] | None = None,
    ) -> Chat:
        openai = [message.as_openai() for message in messages]
        return Chat(
            messages=messages_of(openai, sees_images=engine.prompts.sees_images),
            ask=self.ask(service, engine),
            tools=chosen(tools_of(tools), "auto", several=None),
            variables=service.variables(None, self.think),
        )


class ChatRequest(OllamaRequest):
    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[FunctionTool] | None = None


class GenerateRequest(OllamaRequest):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


def _schema(form: str | dict[str, Any] | None) -> str | None:
    if isinstance(form, dict):
        return json.dumps(form)
    if form not in (None, "", "json"):
        raise ApiError(400, "format is neither json nor a JSON schema.")
    return '{"type": "object"}' if form else None


def _with_images(text: str, images: Sequence[str] | None) -> Content:
    if not images:
        return text
    urls = [f"data:image/*;base64,{one}" for one in images]
    shown = [ContentPart(type="images", image_url=url) for url in urls]
    return [*shown, ContentPart(type="text", text=text)]


async def chat(service: Service, wanted: ChatRequest) -> Any:
    if wanted.unloads and not wanted.messages:
        return await _unloaded(service, wanted, "message")
    engine = await service.open(wanted.model)
    if not wanted.messages:
        return _empty(service.host, "message", "load")
    if wanted.images:
        raise ApiError(400, "Images go with a message. Put them into one.")
    ask = await ask_of(engine, wanted.of(wanted.messages, service, engine, wanted.tools))
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
        ask = await ask_of(engine, wanted.of(messages, service, engine))
        if wanted.context:
            assert isinstance(ask.prompt, Tokens)
            ask = replace(ask, prompt=_behind(wanted.context, ask.prompt, engine))
    return OllamaReply(await service.begin(engine, ask), wanted, "response")


def _behind(context: Sequence[int], prompt: Tokens, engine: Engine) -> Tokens:
    """A prompt after the tokens of an earlier one and its answer."""
    vocabulary = engine.model.vocabulary
    again = vocabulary.adds_bos and prompt[0] == vocabulary.bos
    found = Tokens([*context, *prompt[again:]])
    found.spelled = prompt.spelled
    return found


async def _unloaded(service: Service, wanted: OllamaRequest, member: str) -> dict[str, Any]:
    host = service.common.models.find(wanted.model)
    await service.common.models.unload(host)
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
            {"id": call.id, "function": {"name": call.name, "arguments": call.as_object()}}
            for call in message.calls
        ]
    return {"message": content}


class ShowRequest(Record):
    model: str | None = None
    name: str | None = None


async def tags(service: Service) -> Any:
    service.require_started()
    return {"models": [_described(host) for host in service.common.models.hosts]}


async def ps(service: Service) -> Any:
    service.require_started()
    more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
    return {
        "models": [
            {**_described(host), **more, "context_length": host.engine.context_length}
            for host in service.common.models.hosts
            if host.engine is not None
        ]
    }


async def show(service: Service, wanted: ShowRequest) -> Any:
    engine = await service.open(wanted.model or wanted.name)
    can = {
        "completion": True,
        "tools": engine.prompts.knows_tools,
        "vision": engine.prompts.sees_images,
        "thinking": reasons(engine.model.chat_template),
        "insert": {"pre", "suf", "mid"} <= engine.model.vocabulary.filling().keys(),
    }
    parameters = settings_of(service.defaults)
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{k} {v}" for k, v in parameters.items() if k != "logit_bias"),
        "template": engine.model.chat_template or "",
        "details": _details(service.host),
        "model_info": await asyncio.to_thread(_model_info, engine.model.path),
        "capabilities": [name for name, offered in can.items() if offered],
        "modified_at": _modified(engine.model.path),
    }


def _model_info(path: Path) -> dict[str, Any]:
    """The file's metadata with numbers as numbers; None for arrays, as from ollama."""
    found = read_gguf(path, tensors=False).metadata
    simple = (str, int, float)
    return {
        key: value if isinstance(value, simple) and str(value) not in _NO_JSON else None
        for key, value in found.items()
    }


async def version(service: Service) -> Any:
    return {"version": VERSION}


def _described(host: ModelHost) -> dict[str, Any]:
    path = host.path
    assert path is not None, "models that are not loaded have files"
    digest = hashlib.sha256(f"{path}:{path.stat().st_size}".encode()).hexdigest()
    return {
        "name": host.name,
        "model": host.name,
        "modified_at": _modified(path),
        "size": path.stat().st_size,
        "digest": digest,
        "details": _details(host),
    }


def _details(host: ModelHost) -> dict[str, Any]:
    about = {} if host.engine is None else host.engine.model.metadata
    family = about.get("general.architecture", "")
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": about.get("general.size_label", ""),
        "quantization_level": quant_of(host.path.name if host.path is not None else ""),
    }


def _modified(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).isoformat()
