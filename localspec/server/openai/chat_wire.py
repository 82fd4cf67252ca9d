"""What a request for a chat completion consists of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from localspec.prompting.content import marked
from localspec.server.failures import ApiError
from localspec.server.images import IMAGES, image_in
from localspec.server.tools import NO_PARAMETERS, Tool
from localspec.server.wire import MOST_CHOICES, Record, SamplingFields

TEXTS = ("text", "input_text", "output_text", "refusal")
"""Kinds of content parts that are text."""


class FunctionCall(Record):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Record):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class ImageUrl(Record):
    url: str


class ContentPart(Record):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None


Content = str | list[ContentPart]


class Message(Record):
    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class Function(Record):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class FunctionTool(Record):
    type: str
    function: Function


class SchemaFormat(Record):
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Record):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class StreamOptions(Record):
    include_usage: bool | None = None


class Prediction(Record):
    type: Literal["content"] = "content"
    content: Content


class AnswerFields(SamplingFields):
    """What chat completions and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n_predict: int | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    regex: str | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    timings_per_token: bool | None = None
    cache_prompt: bool | None = None
    id_slot: int | None = None
    return_progress: bool | None = None
    n_keep: int | None = None
    n_discard: int | None = None
    # vLLM's, refused rather than left out: the answer would not be what is asked for.
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None

    @property
    def longest(self) -> int | None:
        """The longest answer, by the first of its names that was given."""
        given = (self.max_completion_tokens, self.max_tokens, self.n_predict)
        return next((value for value in given if value is not None), None)

    @property
    def reports(self) -> bool:
        """Whether it is to be told how far the prompt is read, which only a stream can."""
        return bool(self.stream and self.return_progress)


class RawFields(AnswerFields):
    """What the ways to go on from text have in common."""

    parse_special: bool = True
    """Whether special tokens that the text spells are read as such, as llama.cpp does."""

    def as_prompt(self, text: str) -> str:
        """What the engine is asked to go on from."""
        return text if self.parse_special else marked(text)


class ChatRequest(AnswerFields):
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    verbose: bool | None = None
    speculation: bool | None = None


class CountRequest(Record):
    """A chat completion of which only the prompt's length is wanted."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[FunctionTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def text_of(content: Content | None, *, between: str = "\n") -> str:
    """The text of a message.

    Args:
        between: stands between its parts.

    Raises:
        ApiError: a part that is no text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in TEXTS:
            raise ApiError(
                400,
                f"The model reads text only, and a message has a part of type "
                f"'{part.type[:40]}'. Leave it out.",
                param="messages",
            )
    return between.join(part.text or part.refusal or "" for part in content)


def messages_of(messages: Sequence[Message], *, sees_images: bool = False) -> list[dict[str, Any]]:
    """The messages as templates know them, or with images as `localspec.llama.pictures.marked`
    takes them.

    Args:
        sees_images: whether the model does.

    Raises:
        ApiError: a part that is no text, or no image where the model sees some.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        # A beginning of the answer has its parts in paragraphs, as llama-server goes on with it.
        begun = message is messages[-1] and role == "assistant" and not message.tool_calls
        if sees_images and role == "user" and has_images(message.content):
            found.append({"role": role, "content": _shown(message.content)})
            continue
        text = text_of(message.content, between="\n\n" if begun else "\n")
        one: dict[str, Any] = {"role": role, "content": text}
        if message.tool_calls:
            one["tool_calls"] = [_call_of(call) for call in message.tool_calls]
        if role in ("tool", "function"):
            one |= {"name": message.name, "tool_call_id": message.tool_call_id}
        if message.reasoning_content:
            one["reasoning_content"] = message.reasoning_content
        found.append(one)
    return found


def has_images(content: Content | None) -> bool:
    """Whether a message has any."""
    return isinstance(content, list) and any(part.type in IMAGES for part in content)


def _shown(content: Content | None) -> list[dict[str, Any]]:
    """The parts of a message with images."""
    found: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else ():
        if part.type in IMAGES:
            place = part.image_url
            url = place.url if isinstance(place, ImageUrl) else place
            found.append({"type": "image", "image": image_in(url)})
        else:
            found.append({"type": "text", "text": text_of([part])})
    return found


def _call_of(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments or {}
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": said}
    return {"id": call.id, "type": "function", "function": function}


def tools_of(tools: Iterable[FunctionTool] | None) -> list[Tool]:
    """The functions among the tools.

    Raises:
        ApiError: a tool of another kind.
    """
    found = []
    for tool in tools or ():
        if tool.type != "function":
            raise ApiError(400, "Only tools of type 'function' are known.", param="tools")
        parameters = tool.function.parameters or NO_PARAMETERS
        found.append(Tool(tool.function.name, tool.function.description or "", parameters))
    return found


def grammar_of(request: AnswerFields) -> str | None:
    """The grammar that the answer has to match; llama.cpp's page sends "" for none.

    Raises:
        ApiError: it is asked for in another server's words.
    """
    for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar"):
        if getattr(request, name) is not None:
            raise _unknown(name)
    if request.structured_outputs is not None:
        raise _unknown("structured_outputs")
    return request.grammar if request.grammar and request.grammar.strip() else None


def _unknown(name: str) -> ApiError:
    return ApiError(
        400, f"{name} is not known here. Use response_format, regex or grammar.", param=name
    )


def schema_of(request: AnswerFields) -> str | None:
    """The JSON schema that the answer has to match, as text.

    Raises:
        ApiError: one that is missing.
    """
    form = request.response_format
    schema: dict[str, Any] | None = request.json_schema
    if form is not None and form.type == "json_object":
        schema = form.schema_ or {"type": "object"}
    elif form is not None and form.type == "json_schema":
        schema = form.json_schema.schema_ if form.json_schema else form.schema_
        if schema is None:
            raise ApiError(
                400, "response_format lacks json_schema.schema.", param="response_format"
            )
    return None if schema is None else json.dumps(schema)
