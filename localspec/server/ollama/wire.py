"""What ollama's requests consist of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from localspec import Engine
from localspec.server.answer import Ask
from localspec.server.failures import ApiError
from localspec.server.images import data_url
from localspec.server.openai.chat_wire import Content, ContentPart, FunctionTool, Message, ToolCall
from localspec.server.service import Service
from localspec.server.wire import (
    Finite,
    Probability,
    Record,
    SamplingFields,
    sampling_of,
    stops_of,
)


class Options(Record):
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Probability | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    num_predict: int | None = None
    num_keep: int | None = None
    repeat_penalty: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1, le=1_000_000_000)] | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None


class OllamaFunction(Record):
    name: str
    arguments: dict[str, Any] | str | None = None


class OllamaCall(Record):
    function: OllamaFunction


class OllamaMessage(Record):
    role: str
    content: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None


class Asking(Record):
    """What both ways to ask have in common."""

    model: str | None = None
    stream: bool | None = None
    format: str | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | str | None = None
    images: list[str] | None = None


class ChatRequest(Asking):
    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[FunctionTool] | None = None


class GenerateRequest(Asking):
    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


def ask_of(service: Service, engine: Engine, wanted: Asking) -> Ask:
    """What the engine is asked, but for the prompt.

    Raises:
        ApiError: it cannot be meant.
    """
    options = wanted.options or Options()
    fields = SamplingFields(**options.model_dump(exclude={"stop", "num_predict", "num_keep"}))
    return Ask(
        prompt="",
        max_tokens=service.longest(options.num_predict or None),  # 0 sets no limit there
        stop=stops_of(options.stop),
        sampling=sampling_of(fields, service.defaults, engine),
        json_schema=_schema(wanted.format),
        shift=service.shift(options.num_keep),
    )


def _schema(form: str | dict[str, Any] | None) -> str | None:
    if form is None or form == "":
        return None
    if isinstance(form, str):
        if form != "json":
            raise ApiError(400, "format is neither json nor a JSON schema.")
        return '{"type": "object"}'
    return json.dumps(form)


def messages_in(messages: Sequence[OllamaMessage]) -> list[Message]:
    """The messages as OpenAI has them."""
    found = []
    for message in messages:
        calls = [
            ToolCall.model_validate(
                {"function": {"name": call.function.name, "arguments": _text(call.function)}}
            )
            for call in message.tool_calls or ()
        ]
        found.append(
            Message(
                role=message.role,
                content=content_of(message.content or "", message.images),
                name=message.tool_name,
                tool_calls=calls or None,
            )
        )
    return found


def content_of(text: str, images: Sequence[str] | None) -> Content:
    """A message of a text, and images before it."""
    if not images:
        return text
    shown = [ContentPart(type="image_url", image_url=data_url("image/*", one)) for one in images]
    return [*shown, ContentPart(type="text", text=text)]


def _text(function: OllamaFunction) -> str:
    arguments = function.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {})
