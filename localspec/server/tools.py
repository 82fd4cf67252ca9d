"""Tools: their descriptions in the prompt, and grammars that enforce calls.

A template that supports tools gets them unchanged. Otherwise the system message describes them,
and a grammar lets the model choose between a call and an answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.llama.json_schema import make_enforceable
from localspec.prompting.pieces import Piece, Plain, Reader, Text
from localspec.server.failures import ApiError, logger
from localspec.server.near_json import parse_partial
from localspec.server.tool_readers import FUNCTIONARY, CallReader, Schemas

_MOST_TOOLS = 1024
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_MOST_CALLS = 8
"""Limit of calls in one answer: small models may never stop."""


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_openai(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": {"type": "object", "properties": {}, **self.parameters},
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools on offer. `must`: a call is required; `several`: whether one answer may have
    several calls (None: the model decides)."""

    tools: tuple[Tool, ...] = ()
    must: bool = False
    several: bool | None = None


def resolve_choice(
    tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, *, several: bool | None
) -> ToolChoice:
    """Apply OpenAI's `tool_choice` to the tools; an ApiError if it is invalid."""
    if len(tools) > _MOST_TOOLS:
        raise ApiError(400, f"There are {len(tools)} tools. Offer {_MOST_TOOLS} at most.")
    if len({tool.name for tool in tools}) < len(tools):
        raise ApiError(400, "Two tools have the same name. Rename one of them.", param="tools")
    mode: Any = "auto" if choice is None else choice
    names = [tool.name for tool in tools]
    if isinstance(choice, Mapping):
        mode = choice.get("type")
        if mode == "allowed_tools":
            allowed = choice.get("allowed_tools")
            told = allowed if isinstance(allowed, Mapping) else choice
            mode, listed = str(told.get("mode") or "auto"), told.get("tools")
            listed = listed if isinstance(listed, list) else []
            names = [_name_in(one) for one in listed if isinstance(one, Mapping)]
        elif mode not in ("none", "auto", "required", "any"):
            mode, names = "required", [_name_in(choice)]
            if not any(tool.name in names for tool in tools):
                why = "tool_choice names a function that is not in tools."
                raise ApiError(400, why, param="tool_choice")
    offered = tuple(tool for tool in tools if tool.name in names)
    if mode == "none":
        return ToolChoice()
    if mode not in ("auto", "required", "any"):
        why = "tool_choice must be none, auto, required or a function."
        raise ApiError(400, why, param="tool_choice")
    if mode != "auto" and not offered:
        why = "tool_choice asks for a call, and there are no tools."
        raise ApiError(400, why, param="tool_choice")
    return ToolChoice(offered, must=mode != "auto", several=several)


def _name_in(said: Mapping[str, Any]) -> Any:
    """The function's name, in either of OpenAI's two formats."""
    function = said.get("function")
    return function.get("name") if isinstance(function, Mapping) else said.get("name")


def call_schema(choice: ToolChoice, answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the JSON schema of an answer: calls, or if none is required, the schema `answer` or
    else a text response. Keywords that cannot be enforced are dropped and logged; clients check
    the arguments."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                # A separate $id keeps references local to the tool's schema.
                "arguments": {"$id": f"urn:tool:{number}", **_parameters_of(tool)},
            },
            "required": ["name", "arguments"],
        }
        for number, tool in enumerate(choice.tools)
    ]
    options: list[dict[str, Any]] = calls
    if choice.several:
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        options = [{"type": "array", "items": call, "minItems": 1, "maxItems": _MOST_CALLS}]
    if answer is not None:
        options = [*options, {"$id": "urn:answer", **answer}]
    elif not choice.must:
        text = {"type": "object", "properties": {"response": {"type": "string"}}}
        options = [*options, {**text, "required": ["response"]}]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _parameters_of(tool: Tool) -> dict[str, Any]:
    found, left_out = make_enforceable(tool.parameters)
    if left_out:
        logger.warning(
            "not enforced in arguments of the tool %r: %s", tool.name[:80], ", ".join(left_out)
        )
    return found


def describe_tools(choice: ToolChoice, schema: Mapping[str, Any] | None) -> str:
    """Describe the tools for the system message, if the template does not support them."""
    described = "\n".join(
        json.dumps(tool.as_openai()["function"], ensure_ascii=False) for tool in choice.tools
    )
    call = '{"name": NAME, "arguments": {…}}'
    if choice.several:
        call = f"[{call}, …]"
    answer = "" if choice.must else ', or in your own words with {"response": "…"}'
    if schema is not None:
        answer = f", or with JSON by this schema: {json.dumps(schema)}"
    return f"You can call these functions:\n{described}\nAnswer with {call}{answer}."


class CallOrResponse:
    """Reads an object that is a call, or has the answer as its "response": the format that a
    grammar enforces if the template does not support tools."""

    def __init__(self, tools: Schemas) -> None:
        self._calls = CallReader(tools, only=True)
        self._raw = ""
        self._returned = 0  # characters of the response
        self._calling = False

    def push(self, text: str) -> Sequence[Piece]:
        if self._calling:
            return self._calls.push(text)
        self._raw += text
        value = parse_partial(self._raw, "trailing-strings") if self._raw.strip() else {}
        if isinstance(value, list) or (value and "response" not in value):
            self._calling = True
            return self._calls.push(self._raw)
        new = str(value.get("response", ""))[self._returned :]
        self._returned += len(new)
        return [Text(new)] if new else []

    def finish(self) -> Sequence[Piece]:
        return self._calls.finish()


def reader_for(choice: ToolChoice, prompt: str, *, guided: bool, formed: bool) -> Reader:
    """Return the reader for an answer with tools. `guided`: a grammar allows only calls, and
    answers by the client's schema (`formed`) or as a response."""
    begun = FUNCTIONARY if str.endswith(prompt, FUNCTIONARY) else ""
    if not (choice.tools or begun):
        return Plain()
    schemas = {tool.name: tool.parameters for tool in choice.tools}
    if guided and not choice.must and not formed:
        return CallOrResponse(schemas)
    only = guided and not formed
    return CallReader(schemas, only=only, single=choice.several is False, begun=begun)
