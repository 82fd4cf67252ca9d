"""Tools: how a model learns of them, and how a grammar makes it call one.

A template with a place for tools gets them as they are. Otherwise they are in the system message,
and a grammar lets the model choose between a call and an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localspec.llama.json_schema import enforceable
from localspec.server.failures import ApiError, logger
from localspec.server.pieces import Plain, Reader
from localspec.server.tool_readers import Bare, CallOrResponse, Tagged

MOST_TOOLS = 128
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_SEVERAL = 8
"""Most calls in one answer: a small model would never stop."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the client offers; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, name: str, description: str | None, parameters: Mapping[str, Any] | None) -> Tool:
        return cls(name, description or "", parameters or NO_PARAMETERS)

    def as_openai(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Tools that may be called: whether one must be, and whether one answer may call several."""

    tools: tuple[Tool, ...] = ()
    must: bool = False
    several: bool = False


def chosen(
    tools: Sequence[Tool], choice: str | Mapping[str, Any] | None, *, several: bool
) -> ToolChoice:
    """The choice that OpenAI's `tool_choice` makes."""
    if len(tools) > MOST_TOOLS:
        raise ApiError(400, f"There are {len(tools)} tools. Offer {MOST_TOOLS} at most.")
    if len({tool.name for tool in tools}) < len(tools):
        raise ApiError(400, "Two tools have the same name. Rename one of them.", param="tools")
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        told = allowed if isinstance(allowed, Mapping) else choice
        names = [_name_in(one) for one in told.get("tools") or () if isinstance(one, Mapping)]
        some = [tool for tool in tools if tool.name in names]
        return chosen(some, str(told.get("mode") or "auto"), several=several)
    if isinstance(choice, Mapping) and choice.get("type") in ("none", "auto", "required", "any"):
        choice = str(choice["type"])
    if isinstance(choice, Mapping):
        name = _name_in(choice)
        named = tuple(tool for tool in tools if tool.name == name)
        if not named:
            raise ApiError(
                400, "tool_choice names a function that is not in tools.", param="tool_choice"
            )
        return ToolChoice(named, must=True, several=several)
    if choice in (None, "auto"):
        return ToolChoice(tuple(tools), several=several)
    if choice == "none":
        return ToolChoice()
    if choice in ("required", "any"):
        if not tools:
            raise ApiError(400, "tool_choice asks for a call, and there are no tools.")
        return ToolChoice(tuple(tools), must=True, several=several)
    raise ApiError(
        400, "tool_choice is none of none, auto, required and a function.", param="tool_choice"
    )


def _name_in(said: Mapping[str, Any]) -> Any:
    """The name of a function, in either of OpenAI's ways to say it."""
    function = said.get("function")
    return function.get("name") if isinstance(function, Mapping) else said.get("name")


def schema_of_calls(choice: ToolChoice) -> dict[str, Any]:
    """The JSON schema of an answer: calls, or a response where no call is required. Keywords that
    cannot be enforced are left out, and logged: clients check arguments."""
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
    if not choice.must:
        text = {"type": "object", "properties": {"response": {"type": "string"}}}
        options = [*options, {**text, "required": ["response"]}]
    return options[0] if len(options) == 1 else {"anyOf": options}


def _parameters_of(tool: Tool) -> dict[str, Any]:
    found, left_out = enforceable(tool.parameters)
    if left_out:
        logger.warning(
            "not enforced in arguments of the tool %r: %s", tool.name[:80], ", ".join(left_out)
        )
    return found


def explained(choice: ToolChoice) -> str:
    """The tools, for the system message of a model whose template has no place for them."""
    described = "\n".join(
        json.dumps(tool.as_openai()["function"], ensure_ascii=False) for tool in choice.tools
    )
    call = '{"name": NAME, "arguments": {…}}'
    if choice.several:
        call = f"[{call}, …]"
    answer = "" if choice.must else ', or in your own words with {"response": "…"}'
    return f"You can call these functions:\n{described}\nAnswer with {call}{answer}."


def reader_for(choice: ToolChoice, template: str | None) -> Reader:
    """A reader of the calls in an answer, by the template that has a place for tools, if any."""
    if not choice.tools:
        return Plain()
    if choice.must:
        return Bare()
    if template is None:
        return CallOrResponse()
    return Tagged() if Tagged.OPENS in template else Bare()
