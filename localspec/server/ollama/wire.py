"""ollama's requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from localspec import Engine
from localspec.server.answers import Ask
from localspec.server.failures import ApiError
from localspec.server.openai.messages import (
    Content,
    ContentPart,
    FunctionTool,
    Message,
    ToolCall,
)
from localspec.server.service import Service
from localspec.server.wire import Record, Sampling, sampling_of, stops_of


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
    thinking: str | None = None

    def as_openai(self) -> Message:
        return Message(
            role=self.role,
            content=_content(self.content or "", self.images),
            name=self.tool_name,
            tool_calls=self.tool_calls or None,
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


def _content(text: str, images: Sequence[str] | None) -> Content:
    if not images:
        return text
    urls = [f"data:image/*;base64,{one}" for one in images]
    shown = [ContentPart(type="image_url", image_url=url) for url in urls]
    return [*shown, ContentPart(type="text", text=text)]
