"""ollama's protocol."""

import asyncio
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from localspec import Engine
from localspec.decoding.logprobs import TokenLogprob
from localspec.errors import LocalspecError
from localspec.files import size_and_time
from localspec.gguf.description import is_embedding_model
from localspec.gguf.names import quant_of
from localspec.gguf.reader import readable
from localspec.llama.embeddings import EmbeddingModel
from localspec.llama.options import DEFAULT_CONTEXT
from localspec.llama.types import FILE_TYPES
from localspec.prompting.prompt import Tokens
from localspec.prompting.reasoning import Text, Thought, reasons
from localspec.prompting.template import ChatTemplate
from localspec.server.answer_figures import chat_logprobs
from localspec.server.answers import AnswerPart, Answers, Call
from localspec.server.failures import ApiError
from localspec.server.llama_cpp import settings_of
from localspec.server.model_hosts import ModelHost
from localspec.server.openai import chat as openai
from localspec.server.openai.completions import infill_prompt
from localspec.server.openai.messages import FunctionTool, Message
from localspec.server.reply import Event, Reply, as_json
from localspec.server.service import Service
from localspec.server.wire import Object, Record, Sampling
from localspec.text import finite

VERSION = "0.31.0"
"""The version whose protocols are offered; Codex and others refuse older ones."""
_DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))*(\d+(\.\d+)?)?")


def _duration(given: Any) -> Any:
    if isinstance(given, str) and not _DURATION.fullmatch(given):
        raise PydanticCustomError("duration", "give seconds, or a text such as 5m or 1h30m")
    return given


class Options(Sampling):
    stop: str | list[str] | None = None
    num_predict: int | None = None
    num_keep: int | None = None


class OllamaRequest(openai.Thinking):
    model: str | None = None
    stream: bool | None = None
    format: str | Object | None = None
    options: Options | None = None
    images: list[str] | None = None
    keep_alive: Annotated[str | int | float | None, BeforeValidator(_duration)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def unloads(self) -> bool:
        """Whether to unload the model after the answer."""
        return re.fullmatch(r"(?=.*\d)[^1-9]+", str(self.keep_alive)) is not None

    def as_chat(
        self, messages: list[Message], tools: list[FunctionTool] | None = None
    ) -> openai.ChatRequest:
        options = self.options or Options()
        return openai.ChatRequest.of(
            self,
            options,
            messages=messages,
            tools=tools,
            max_tokens=options.num_predict or None,  # 0 sets no limit here
            n_keep=options.num_keep,
            json_schema=_schema(self.format),
        )


class ChatRequest(OllamaRequest):
    messages: list[Message] = Field(default_factory=list)
    tools: list[FunctionTool] | None = None


class GenerateRequest(OllamaRequest):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None


def _schema(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if isinstance(form, dict):
        return form
    if form not in (None, "", "json"):
        raise ApiError(400, "format is neither json nor a JSON schema.")
    return {"type": "object"} if form else None


async def chat(service: Service, wanted: ChatRequest) -> Any:
    if not wanted.messages:
        return await _load_or_unload(service, wanted, "message")
    if wanted.images:
        raise ApiError(400, "Images go with a message. Put them in one.")
    service.unloads = wanted.unloads
    answers = await openai.begin(service, wanted.as_chat(wanted.messages, wanted.tools))
    return OllamaReply(answers, wanted, "message")


async def generate(service: Service, wanted: GenerateRequest) -> Any:
    """Answer a prompt, through the template unless it is raw."""
    if not (wanted.prompt or wanted.suffix):
        return await _load_or_unload(service, wanted, "response")
    service.unloads = wanted.unloads
    engine = await service.open(wanted.model)
    if wanted.raw and (wanted.template or wanted.system or wanted.context):
        raise ApiError(400, "A raw prompt has no template, system or context. Leave them out.")
    if wanted.context and wanted.images:
        raise ApiError(400, "Images and a context cannot be combined. Use /api/chat.")
    if wanted.template:
        raise ApiError(400, "The model's own template is used. Leave template out, or send raw.")
    messages = [Message(role="user", content=wanted.prompt, images=wanted.images)]
    if wanted.system:
        messages.insert(0, Message(role="system", content=wanted.system))
    asked = wanted.as_chat(messages)
    if wanted.suffix:
        limit = asked.limit[1]
        filled = await asyncio.to_thread(
            infill_prompt, engine, wanted.prompt, wanted.suffix, limit=limit
        )
        ask = asked.ask(service, engine, filled)
    elif wanted.raw or engine.model.chat_template is None:
        if wanted.images:
            raise ApiError(400, "Images need the model's chat template. Leave raw out.")
        ask = asked.ask(service, engine, wanted.prompt)
    else:
        ask = await openai.prepared(service, engine, asked)
        if wanted.context:
            assert isinstance(ask.prompt, Tokens)
            ask = replace(ask, prompt=_append_to_context(wanted.context, ask.prompt, engine))
    return OllamaReply(await service.begin(engine, ask), wanted, "response")


def _append_to_context(context: Sequence[int], prompt: Tokens, engine: Engine) -> Tokens:
    """Append a prompt to the tokens of an earlier conversation."""
    vocabulary = engine.model.vocabulary
    again = vocabulary.adds_bos and prompt[0] == vocabulary.bos
    found = Tokens([*context, *prompt[again:]])
    vars(found).update(vars(prompt))
    return found


async def _load_or_unload(service: Service, wanted: OllamaRequest, member: str) -> dict[str, Any]:
    """Load the model, or unload it if keep_alive is 0."""
    if wanted.unloads:
        host = service.state.models.find(wanted.model)
        await service.state.models.unload(host)
    else:
        await service.open(wanted.model)
        host = service.host
    head = {"model": host.name, "created_at": _now(), **_content(member)}
    return {**head, "done": True, "done_reason": "unload" if wanted.unloads else "load"}


class OllamaReply(Reply):
    """The answer in ollama's format; `member` has the text: "message" or "response"."""

    media_type: ClassVar[str] = "application/x-ndjson"
    ping: ClassVar[bytes] = b""

    def __init__(self, answers: Answers, wanted: OllamaRequest, member: str) -> None:
        super().__init__(answers, streamed=wanted.stream is not False)
        self._member, self._wanted = member, wanted
        self._continues = isinstance(wanted, GenerateRequest) and not (wanted.raw or wanted.suffix)

    def events_of(self, part: AnswerPart) -> Iterable[Event]:
        piece, calls = part.piece, self.answer.calls
        text = piece.text if isinstance(piece, Text) else ""
        thought = piece.text if isinstance(piece, Thought) else ""
        if text or thought or part.logprobs:
            yield self._line(text, thought, logprobs=part.logprobs)
        if part.complete and calls:  # calls are sent when they are complete
            yield self._line(calls=calls)

    def end(self) -> Iterable[Event]:
        yield {**self._line(), **self._final()}

    def whole(self) -> Any:
        one = self.answer
        return {**self._line(one.text, one.thought, one.calls, one.logprobs), **self._final()}

    def encode(self, value: Event) -> bytes:
        return as_json(value) + b"\n"

    def _line(
        self,
        text: str = "",
        thought: str = "",
        calls: Sequence[Call] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> Event:
        head = {"model": self.model, "created_at": _now()}
        entries = chat_logprobs(logprobs, self.engine)
        more = {"logprobs": entries} if self._wanted.logprobs and entries else {}
        return {**head, **_content(self._member, text, thought, calls), "done": False, **more}

    def _final(self) -> Event:
        stats = self.answer.stream.stats
        load = round(stats.calibration_seconds * 1e9)  # done once, like loading
        prompt, decode = round(stats.prompt_seconds * 1e9), round(stats.decode_seconds * 1e9)
        return {
            "done": True,
            "done_reason": "length" if self.answer.stream.finish_reason == "length" else "stop",
            "total_duration": load + prompt + decode,
            "load_duration": load,
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": stats.generated_tokens,
            "eval_duration": decode,
            **({"context": [*self.answer.stream.context]} if self._continues else {}),
        }


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _content(
    member: str, text: str = "", thought: str = "", calls: Sequence[Call] = ()
) -> dict[str, Any]:
    thinking = {"thinking": thought} if thought else {}
    if member == "response":
        return {"response": text, **thinking}
    content: dict[str, Any] = {"role": "assistant", "content": text, **thinking}
    if calls := [one for one in calls if not one.cut]:  # clients would run a cut one
        content["tool_calls"] = [
            {"id": one.id, "function": {"index": n, "name": one.name, "arguments": one.as_object()}}
            for n, one in enumerate(calls)
        ]
    return {"message": content}


class NamedModel(Record):
    model: str | None = None
    name: str | None = None


async def pull(service: Service, wanted: NamedModel) -> Any:
    """Clients pull a model before they use it. Raises ApiError for one that is not served."""
    service.state.models.find(wanted.model or wanted.name)
    return {"status": "success"}


async def tags(service: Service) -> Any:
    hosts = service.state.models.hosts
    return {"models": [_describe(host, *await _read(host)) for host in hosts]}


async def ps(service: Service) -> Any:
    more = {"expires_at": "9999-12-31T23:59:59Z", "size_vram": 0}
    hosts = [host for host in service.state.models.hosts if host.opened is not None]
    found = [_describe(host, *await _read(host)) for host in hosts]
    for one in found:
        one.update(more, context_length=one["details"]["context_length"])
    return {"models": found}


async def show(service: Service, wanted: NamedModel) -> Any:
    """Describe a model without loading it: clients ask about every model."""
    service.require_started()
    query = service.request.query_params.get("model")
    host = service.state.models.find(wanted.model or wanted.name or query)
    about, able = await _read(host)
    one = _describe(host, about, able)
    length = one["details"]["context_length"]
    parameters = {"num_ctx": length, **settings_of(service.defaults)}
    # Clients read it as the limit of a request.
    about[f"{one['details']['family']}.context_length"] = length
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{k} {v}" for k, v in parameters.items() if k != "logit_bias"),
        "template": about.get("tokenizer.chat_template") or "",
        "details": one["details"],
        "model_info": about,
        "capabilities": one["capabilities"],
        "modified_at": one["modified_at"],
    }


async def _read(host: ModelHost) -> tuple[dict[str, Any], list[str]]:
    """The metadata of a model's file, None for arrays, as in ollama, and what its templates can do.
    Only texts, or nothing, if the file was moved."""
    path, model = host.path, host.model

    def read() -> tuple[dict[str, Any], list[str]]:
        file = readable(path)
        found: Mapping[str, Any] = {} if model is None else model.metadata
        found = found if file is None else file.metadata
        if isinstance(host.opened, EmbeddingModel) or is_embedding_model(path):
            able = ["embedding"]
        else:
            able = ["completion", *_of_templates(found)]
        simple = (str, int, float)
        about = {key: one if isinstance(one, simple) else None for key, one in found.items()}
        return finite(about), able

    return await asyncio.to_thread(read)


def _of_templates(about: Mapping[str, Any]) -> Iterator[str]:
    plain = str(about.get("tokenizer.chat_template", ""))
    source = str(about.get("tokenizer.chat_template.tool_use", plain))
    with suppress(LocalspecError):
        if source and ChatTemplate(source, bos="", eos="").knows_tools:
            yield "tools"
    if reasons(plain):
        yield "thinking"


async def version(service: Service) -> Any:
    return {"version": VERSION}


def _describe(host: ModelHost, about: Mapping[str, Any], able: Sequence[str]) -> dict[str, Any]:
    path, engine, opened = host.path, host.engine, host.opened
    size, modified = size_and_time(path)  # zeros if it was moved while it is open
    family = about.get("general.architecture", "")
    own = about.get(f"{family}.context_length")  # text if the file was moved
    length = host.options.context_for(own if isinstance(own, int) else DEFAULT_CONTEXT)
    if opened is not None:
        length = opened.longest if isinstance(opened, EmbeddingModel) else opened.context_length
    named = (n for of, n in FILE_TYPES.items() if str(of) == str(about.get("general.file_type")))
    more = [] if engine is None else [("vision", engine.prompts.sees_images)]
    if engine is not None:
        marks = engine.model.vocabulary.infill_tokens().keys()
        more.append(("insert", {"pre", "suf", "mid"} <= marks))
    return {
        "name": host.name,
        "model": host.name,
        "modified_at": datetime.fromtimestamp(modified / 1e9, timezone.utc).isoformat(),
        "size": size,
        "digest": hashlib.sha256(os.fsencode(f"{path}:{size}")).hexdigest(),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": family,
            "families": [family],
            "parameter_size": about.get("general.size_label", ""),
            "quantization_level": quant_of(path.name) or next(named, ""),
            "context_length": length,
            "embedding_length": about.get(f"{family}.embedding_length"),
        },
        "capabilities": [*able, *(name for name, offered in more if offered)],
    }
