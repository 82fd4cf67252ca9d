"""Tools: how a model learns of them, and how a grammar makes it call one.

A template with a place for tools gets them as they are. Otherwise they are in the system message,
and a grammar lets the model choose between a call and an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.llama.json_schema import make_enforceable
from localspec.prompting.pieces import Plain, Reader
from localspec.server.failures import ApiError, logger
from localspec.server.tool_readers import FUNCTIONARY, CallOrResponse, CallReader

MOST_TOOLS = 1024
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_SEVERAL = 8
"""Most calls in one answer: a small model would never stop."""


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
    """`several`: whether one answer may have several calls; None leaves it to the model."""

    tools: tuple[Tool, ...] = ()
    must: bool = False
    several: bool | None = None


def chosen(
    tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, *, several: bool | None
) -> ToolChoice:
    """The choice that OpenAI's `tool_choice` makes."""
    if len(tools) > MOST_TOOLS:
        raise ApiError(400, f"There are {len(tools)} tools. Offer {MOST_TOOLS} at most.")
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
    """In either of OpenAI's ways to say it."""
    function = said.get("function")
    return function.get("name") if isinstance(function, Mapping) else said.get("name")


def schema_of_calls(choice: ToolChoice, answer: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON schema of an answer: calls, or where none is required what the schema `answer` says,
    a response without one. Keywords that cannot be enforced in arguments are left out, and logged:
    clients check them."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                # With an id of its own, references in it stay within it.
                "arguments": {"$id": f"urn:tool:{number}", **_parameters_of(tool)},
            },
            "required": ["name", "arguments"],
        }
        for number, tool in enumerate(choice.tools)
    ]
    options: list[dict[str, Any]] = calls
    if choice.several:
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        options = [{"type": "array", "items": call, "minItems": 1, "maxItems": _SEVERAL}]
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


def explained(choice: ToolChoice, schema: Mapping[str, Any] | None) -> str:
    """For the system message of a model whose template has no place for tools."""
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


def reader_for(choice: ToolChoice, prompt: str, *, guided: bool, formed: bool) -> Reader:
    """`guided`: a grammar makes the model call, or else answer by the client's schema (`formed`),
    or with a response."""
    begun = FUNCTIONARY if str.endswith(prompt, FUNCTIONARY) else ""
    if not (choice.tools or begun):
        return Plain()
    schemas = {tool.name: tool.parameters for tool in choice.tools}
    if guided and not choice.must and not formed:
        return CallOrResponse(schemas)
    only = guided and not formed
    return CallReader(schemas, only=only, single=choice.several is False, begun=begun)
