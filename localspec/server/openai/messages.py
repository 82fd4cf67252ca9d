"""Messages and tools in OpenAI's format, to which the other chat protocols convert theirs."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, model_validator

from localspec.grammars.intended_schema import normalise
from localspec.server.failures import ApiError, logger
from localspec.server.near_json import dump
from localspec.server.tools import NO_PARAMETERS, Tool, custom_tool
from localspec.server.wire import Object, Record

TEXTS = ("text", "input_text", "output_text", "refusal")
IMAGES = ("image_url", "input_image", "image", "images")  # also Anthropic's, and ollama's
KEPT = "thinking: "
"""Begins a thought in a field that clients only return, for its next turn: Anthropic's signature,
and the encrypted content of Responses, which is not encrypted here."""
_OF_URLS = {ord("-"): "+", ord("_"): "/"}
_DATA = re.compile(r"\s*data:[^,]{0,200};base64,", re.IGNORECASE)


class FunctionCall(Record):
    name: str
    arguments: str | Object | None = None


class ToolCall(Record):
    id: str | None = None
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def _as_function(cls, given: Any) -> Any:
        """Convert a call of a custom tool to one of a function, as its tool is offered."""
        custom = given.get("custom") if isinstance(given, dict) else None
        if not isinstance(custom, dict):
            return given
        said = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {**given, "function": said}


class ContentPart(Record):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | str | None = None
    thinking: str | list[ContentPart] | None = None  # of an assistant, as Mistral and vLLM have it

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        """Convert to a text: a file in UTF-8, or a message between Codex's agents, which is marked
        as encrypted, although only OpenAI's server encrypts it."""
        if isinstance(given, dict) and given.get("type") == "encrypted_content":
            return {"type": "text", "text": given.get("encrypted_content")}
        if not isinstance(given, dict) or given.get("type") not in ("file", "input_file"):
            return given
        file = given["file"] if isinstance(given.get("file"), dict) else given
        with suppress(ValueError):
            text = _bytes_of(str(file.get("file_data"))).decode()
            return given if "\0" in text else {"type": "text", "text": text}
        return given


def _as_parts(given: Any) -> Any:
    """Convert the texts in a list to parts."""
    if not isinstance(given, list):
        return given
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in given]


Content = Annotated[str | list[ContentPart], BeforeValidator(_as_parts)]


class Message(Record):
    role: str
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None  # their former format
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's name for it
    # ollama's fields.
    thinking: str | None = None
    images: list[str] | None = None
    tool_name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _result_as_text(cls, given: Any) -> Any:
        """Write the result of a call as JSON if it is neither text nor parts."""
        content = given.get("content") if isinstance(given, dict) else None
        if not isinstance(content, dict | list) or given.get("role") not in ("tool", "function"):
            return given
        others = [one for one in content if not isinstance(one, str | ContentPart)]
        if isinstance(content, list) and all(isinstance(x, dict) and "type" in x for x in others):
            return given
        return {**given, "content": dump(content)}

    @property
    def shown(self) -> Content | None:
        """The content, including ollama's images."""
        if not self.images:
            return self.content
        urls = [one if _DATA.match(one) else f"data:;base64,{one}" for one in self.images]
        text = ContentPart(type="text", text=text_of(self.content))
        return [*(ContentPart(type="images", image_url=url) for url in urls), text]


class Function(Record):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: str | None = None
    parameters: Object | None = None


class FunctionTool(Record):
    """A tool, with its function as an object or, as in newer protocols, its fields inline."""

    type: str = "function"
    function: Function | None = None
    custom: FunctionTool | None = None
    format: Object | None = None  # of a custom tool's input
    name: Annotated[str, Field(max_length=128)] | None = None
    description: str | None = None
    parameters: Object | None = None
    input_schema: Object | None = None  # Anthropic's name for them
    defer_loading: bool | None = None  # Anthropic's: until a result refers to it
    # In Responses: the tools of a namespace; who runs a tool search.
    tools: list[FunctionTool] | None = None
    execution: str | None = None

    @property
    def searches(self) -> bool:
        """Whether it is the client's search for further tools."""
        return (self.type, self.execution) == ("tool_search", "client")


def text_of(content: Content | None, *, between: str = "\n") -> str:
    if content is None or isinstance(content, str):
        return content or ""
    content = [part for part in content if part.thinking is None]
    for part in content:
        if part.type not in TEXTS:
            kind = f"The model reads text only, and a message has a part of type '{part.type[:40]}'"
            raise ApiError(400, f"{kind}. Leave it out.")
        if part.text is None and part.refusal is None:  # such as one with another field
            why = f"A part of type '{part.type}' has no text. Put it into the field text."
            raise ApiError(400, why)
    return between.join(part.text or part.refusal or "" for part in content)


def messages_of(messages: Sequence[Message], *, sees_images: bool = False) -> list[dict[str, Any]]:
    """Convert messages to the format of templates; for images see
    `localspec.llama.pictures.mark_images`. Images in results of calls move to the user's next
    message, as templates accept them only there."""
    found: list[dict[str, Any]] = []
    shown: list[ContentPart] = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        content = message.shown
        parts = content if isinstance(content, list) else []
        if sees_images and role == "tool" and parts:
            shown += [part for part in parts if part.type in IMAGES]
            content = [part for part in parts if part.type not in IMAGES]
        elif shown:
            if role == "user":
                parts = [*shown, *(parts or [ContentPart(type="text", text=text_of(content))])]
            else:
                found.append({"role": "user", "content": _with_images(shown)})
            shown = []
        if sees_images and role == "user" and any(part.type in IMAGES for part in parts):
            found.append({"role": role, "content": _with_images(parts)})
            continue
        # Parts of an answer to continue are joined as paragraphs, as in llama-server.
        former = message.function_call
        calls = message.tool_calls or ([ToolCall(function=former)] if former else [])
        begun = message is messages[-1] and role == "assistant" and not calls
        text = text_of(content, between="\n\n" if begun else "\n")
        one: dict[str, Any] = {"role": role, "content": text}
        if calls:
            one["tool_calls"] = [_call(call) for call in calls]
        if role in ("tool", "function"):
            name = message.name or message.tool_name
            one |= {"name": name, "tool_call_id": message.tool_call_id}
        thoughts = "\n".join(text_of(part.thinking) for part in parts if part.thinking)
        named = message.reasoning_content or message.reasoning or message.thinking
        if thought := named or thoughts:
            one["reasoning_content"] = thought
        found.append(one)
    return [*found, {"role": "user", "content": _with_images(shown)}] if shown else found


def _call(call: ToolCall) -> dict[str, Any]:
    arguments = call.function.arguments or {}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _with_images(content: Sequence[ContentPart]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in content:
        if part.type in IMAGES:
            place = part.image_url
            url = place.get("url") if isinstance(place, dict) else place
            found.append({"type": "image", "image": _image(str(url or ""))})
        else:
            found.append({"type": "text", "text": text_of([part])})
    return found


def _image(url: str) -> bytes:
    if _DATA.match(url) is None:
        why = "An image has no data: URL. The server fetches nothing: send the image itself, as "
        raise ApiError(400, f"{why}data:image/png;base64,…")
    try:
        return _bytes_of(url)
    except binascii.Error:
        raise ApiError(400, "An image is not valid base64.") from None


def _bytes_of(url: str) -> bytes:
    """The content of a data: URL. Raises ValueError if it has none."""
    if (found := _DATA.match(url)) is None:
        raise ValueError(url[:40])
    # Clients wrap its lines, quote it, and omit the padding.
    data = "".join(unquote(url[found.end() :]).split()).translate(_OF_URLS).rstrip("=")
    return base64.b64decode(data + "=" * (-len(data) % 4), validate=True)


def tools_of(tools: Iterable[FunctionTool] | None) -> list[Tool]:
    """Return the client's own tools. Tools that the provider would run are dropped and logged.
    Raises ApiError if there are no others."""
    found, hosted = [], []
    for number, tool in enumerate(tools or ()):
        one = tool.function or tool.custom or tool
        flat = tool.parameters or tool.input_schema
        if tool.type == "custom" and one.name:
            form = (tool.custom or tool).format or {}
            found.append(custom_tool(one.name, one.description or "", form))
        elif tool.type not in ("function", "custom"):
            hosted.append(tool.type)
        elif one.name:
            parameters = normalise(one.parameters or flat or NO_PARAMETERS)
            found.append(Tool(one.name, one.description or "", parameters))
        elif flat or tool.description:
            raise ApiError(400, "A function has no name.", param="tools")
        else:
            name = f"tools.{number}.function"
            raise ApiError(400, f"{name} is missing.", param=name)
    if hosted and not found:
        why = f"Tools of type '{hosted[0][:40]}' are not supported, and there are no others."
        raise ApiError(400, why, param="tools")
    if hosted:
        logger.warning("tools are left out, of type %s", ", ".join(hosted))
    return found
