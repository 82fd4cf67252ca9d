"""Tools: their descriptions in the prompt, and grammars that enforce calls.

A template that supports tools gets them unchanged. Otherwise the system message describes them,
and a grammar lets the model choose between a call and an answer.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from localspec.grammars.grammar import check_lark, lark_of_regex
from localspec.grammars.intended_schema import parse_schema
from localspec.grammars.json_schema import grammar_of, in_lark, make_enforceable
from localspec.keywords import AnswerKeywords
from localspec.prompting.reasoning import CallArguments, CallBegins, Piece, Plain, Reader
from localspec.server.call_formats import FUNCTIONARY
from localspec.server.failures import ApiError, logger
from localspec.server.near_json import OPEN_END, dump, parse_partial, to_json
from localspec.server.tool_readers import CallReader, mark_of

_MOST_TOOLS = 1024
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_MOST_CALLS = 8
"""Limit of calls in one answer: small models may never stop."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function, or a `custom` tool: one with a text as its input, which may have to match a
    `grammar` in Lark."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    custom: bool = False
    grammar: str = ""

    def as_openai(self) -> dict[str, Any]:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": {"type": "object", "properties": {}, **self.parameters},
        }
        return {"type": "function", "function": function}


def custom_tool(name: str, description: str, form: Mapping[str, Any]) -> Tool:
    """A custom tool with OpenAI's format of its input. Models see a function with one argument."""
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}}
    parameters["required"] = ["input"]
    if form.get("type", "text") == "text":
        return Tool(name, description, parameters, custom=True)
    rule = form.get("grammar")
    rule = rule if isinstance(rule, Mapping) else form
    syntax, definition = rule.get("syntax"), rule.get("definition")
    if syntax not in ("lark", "regex") or not isinstance(definition, str) or not definition.strip():
        why = "A custom tool's format must be text, or a grammar with its syntax (lark or regex)"
        raise ApiError(400, f"{why} and definition.", param="tools")
    said = f"{description}\nIts input has to match this {syntax} grammar:\n{definition}".lstrip()
    grammar = definition if syntax == "lark" else lark_of_regex(definition)
    check_lark(grammar)
    return Tool(name, said, parameters, custom=True, grammar=grammar)


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
    """Apply OpenAI's `tool_choice` to the tools. Raises ApiError if it is invalid."""
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
        why = "tool_choice asks for a call, but there are no tools."
        raise ApiError(400, why, param="tool_choice")
    return ToolChoice(offered, must=mode != "auto", several=several)


def _name_in(said: Mapping[str, Any]) -> Any:
    """The function's name, in either of OpenAI's two formats."""
    function = said.get("function", said.get("custom"))
    return function.get("name") if isinstance(function, Mapping) else said.get("name")


def call_format(choice: ToolChoice, answer: Mapping[str, Any] | None) -> AnswerKeywords:
    """Return the grammar or JSON schema of an answer: calls, or if none is required, the schema
    `answer` or else a text response. Keywords that cannot be enforced are dropped and logged;
    clients check the arguments. An input with a grammar ends the answer."""
    schema = _call_schema(choice, answer)
    bare = [tool for tool in choice.tools if tool.grammar]
    if schema is not None and not bare:
        return {"json_schema": schema}
    options = []
    if schema is not None:
        grammar_of(meant := parse_schema(schema))  # names what cannot be enforced
        options.append(in_lark(meant))
    options += [f"{dump(mark_of(tool.name))} %lark {{\n{tool.grammar}\n}}" for tool in bare]
    return {"json_schema": None, "grammar": f"start: {' | '.join(options)}"}


def _call_schema(choice: ToolChoice, answer: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The JSON schema of answers, except inputs with a grammar; None if there are no others."""
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
        if not tool.grammar
    ]
    options: list[dict[str, Any]] = calls
    if choice.several and calls:
        call = calls[0] if len(calls) == 1 else {"anyOf": calls}
        options = [{"type": "array", "items": call, "minItems": 1, "maxItems": _MOST_CALLS}]
    if answer is not None:
        options = [*options, {"$id": "urn:answer", **answer}]
    elif not choice.must:
        text = {"type": "object", "properties": {"response": {"type": "string"}}}
        options = [*options, {**text, "required": ["response"]}]
    if len(options) > 1:
        return {"anyOf": options}
    return options[0] if options else None


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
    answer = "" if choice.must else ', or in your own words with {"response": ANSWER}'
    if schema is not None:
        answer = f", or with JSON by this schema: {json.dumps(schema)}"
    for tool in choice.tools:
        call += f", or with {mark_of(tool.name)}INPUT" if tool.grammar else ""
    return f"You can call these functions:\n{described}\nAnswer with {call}{answer}."


class ArgumentReader:
    """Converts the arguments of calls to JSON, and those of custom tools to their input."""

    def __init__(self, inner: Reader, tools: Sequence[Tool]) -> None:
        self._inner, self._names = inner, {tool.name for tool in tools if tool.custom}
        self._convert = self._as_json
        self._said: str | None = None  # arguments of an open call
        self._returned = self._due = 0

    def push(self, text: str) -> Sequence[Piece]:
        return self._read(self._inner.push(text))

    def finish(self) -> Sequence[Piece]:
        return [*self._read(self._inner.finish()), *self._read_arguments(complete=True)]

    def _read(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        found = list[Piece]()
        for piece in pieces:
            if isinstance(piece, CallArguments) and self._said is not None:
                self._said += piece.text
                found += self._read_arguments(complete=False)
                continue
            if not isinstance(piece, CallArguments):
                found += self._read_arguments(complete=True)
            if isinstance(piece, CallBegins) and not piece.custom:
                custom = piece.name in self._names
                self._convert = self._as_input if custom else self._as_json
                piece, self._said, self._returned = replace(piece, custom=custom), "", 0
                self._due = 0
            found.append(piece)
        return found

    def _read_arguments(self, *, complete: bool) -> Sequence[Piece]:
        """The new part of the arguments or input."""
        said = self._said or ""
        if len(said) < self._due and not complete:  # as in `CallReader.push`
            return []
        text, self._due = self._convert(said, complete), len(said) * 17 // 16
        new, self._returned = text[self._returned :], max(self._returned, len(text))
        self._said = None if complete else self._said
        return [CallArguments(new)] if new else []

    def _as_json(self, said: str, complete: bool) -> str:
        found = to_json(said)
        return found if complete else OPEN_END.sub("", found)

    def _as_input(self, said: str, complete: bool) -> str:
        """The input, which models may write under another name or without JSON."""
        value: Any = said
        if said.lstrip().startswith("{"):
            value = ""
            with suppress(ValueError):
                found = parse_partial(said, False if complete else "trailing-strings")
                other = [*found.values()] if len(found) == 1 else [said]
                value = found.get("input", other[0] if complete else "")
        return value if isinstance(value, str) else dump(value) if complete else ""


def reader_for(choice: ToolChoice, prompt: str, *, guided: bool, formed: bool) -> Reader:
    """Return the reader for an answer with tools. `guided`: a grammar allows only calls, and
    answers by the client's schema (`formed`) or as a response."""
    begun = FUNCTIONARY if str.endswith(prompt, FUNCTIONARY) else ""
    if not (choice.tools or begun):
        return Plain()
    only = guided and not formed
    return CallReader(
        {tool.name: tool.parameters for tool in choice.tools},
        only=only,
        single=choice.several is False,
        begun=begun,
        bare=[tool.name for tool in choice.tools if guided and tool.grammar],
        responds=only and not choice.must,
    )
