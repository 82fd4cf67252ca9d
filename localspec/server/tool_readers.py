"""Calls of tools, found in a model's text as it comes, in the formats that models were trained on.

What there is of a call is parsed again with every piece, so a format is a function of a text.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from pydantic_core import from_json

from localspec.prompting.detokenizer import held_back
from localspec.prompting.pieces import CallArguments, CallBegins, Piece, Text

Schemas = Mapping[str, Mapping[str, Any]]
Parsed = tuple[list[tuple[str, str]], int | None]
"""Names and arguments (JSON, of which the last may be a beginning) of calls, and where these end;
None where they go on."""

MARKS = (
    *("<tool_call>", "<function=", "[TOOL_CALLS]"),
    *("<|python_tag|>", "<|python_start|>", "<|tool_call_start|>"),
    *("<|tool_call|>", "<TOOLCALL>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<minimax:tool_call>"),
    *("<|START_ACTION|>", "Action:\n```json", "<start_function_call>", "<|tool_call>"),
    *("<seed:tool_call>", "<tool_calls>", "functools["),
)
CLOSES = (
    *("</tool_call>", "<|python_end|>", "<|tool_call_end|>"),
    *("<|/tool_call|>", "</TOOLCALL>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("```<｜tool▁call▁end｜>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *("</minimax:tool_call>", "<|END_ACTION|>", "```"),
    *("</seed:tool_call>", "</tool_calls>", "</function>"),
)
_LONGEST = 40
"""Characters before a call's name or arguments, apart from its name."""
_BEFORE_NAME = {"arguments", "parameters", "type", "id", "tool_call_id"}
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*(?=\S)')
_QUOTES, _BARE_KEY = re.compile(r'<escape>|<\|"\|>'), re.compile(r"([{,]\s*)([^\s{}\[\],:]+)\s*:")
_QUOTED_ENDS = re.compile(r"\s*(?:<end_function_call>|<tool_call\|>)")
_LIST_ENDS = re.compile(r"\)\s*\]")
_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_STRING, _CONTROL = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL), re.compile(r"[\0-\x1f]")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class NotCall(ValueError):
    """The text cannot be a call."""


def _json(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`{"name": …, "arguments": {…}}`, in either order (Hermes, Qwen 2.5 and 3, Llama 3, Mistral;
    Command R calls them tool_name and parameters). Without a mark before it, only a tool's name
    makes it a call."""
    start, end = found.end(), _end(text, found.end())
    said = _escaped(text[start:end])
    call = _partial(said, True)
    name = call.get("name", call.get("tool_name"))
    if name is None and end is None and call.keys() <= _BEFORE_NAME:
        return [], None
    if not isinstance(name, str) or (not found["mark"] and name not in tools):
        raise NotCall
    return [(name, _arguments(said, complete=end is not None))], end


class _Tags:
    """How parameters stand between tags; a value that spells one of them does not end there."""

    def __init__(self, opens: str, between: str, closes: str, end: str, *, lines: bool) -> None:
        line = r"\n?" if lines else ""
        self.begun = re.compile(rf"{opens}([^<>]+){between}{line}(.*)", re.DOTALL)
        self.whole = re.compile(
            rf"{opens}([^<>]+){between}{line}(.*?){line}{closes}(?=\s*(?:{opens}|{end}))", re.DOTALL
        )
        self.may_end = re.compile(rf"{line}{closes}\s*(?:<[^>]*)?\Z")
        self.ends = re.compile(rf"{closes}\s*{end}")
        self.empty = re.compile(rf"\s*{end}")
        self.marks = ["\n" * lines + closes, closes]

    def read(self, text: str, start: int, name: str, tools: Schemas) -> Parsed:
        """The call whose parameters begin at `start`."""
        ends = self.empty.match(text, start) or self.ends.search(text, start)
        body = text[start : None if ends is None else ends.end()]
        told, at = list[str](), 0
        known = tools.get(name, {}).get("properties")
        known = known if isinstance(known, Mapping) else {}
        for parameter in self.whole.finditer(body):
            value = _typed(parameter[2], known.get(parameter[1]))
            told.append(f"{_dumped(parameter[1])}: {_dumped(value)}")
            at = parameter.end()
        begun = self.begun.search(body, at)
        if ends is None and begun is not None and _is_text(known.get(begun[1])):
            said, end = begun[2], self.may_end.search(begun[2])
            held = max(held_back(said, mark) for mark in self.marks)
            value = said[: len(said) - held if end is None else end.start()]
            told.append(f"{_dumped(begun[1])}: {_dumped(value)[:-1]}")
        arguments = "{" + ", ".join(told)
        if ends is None:
            return [(name, arguments)], None
        return [(name, arguments + "}")], ends.end()


_QWEN = _Tags("<parameter=", ">", "</parameter>", "</function>", lines=True)
_GLM = _Tags("<arg_key>", r"</arg_key>\s*<arg_value>", "</arg_value>", "</tool_call>", lines=False)
_MINIMAX = _Tags('<parameter name="', '">', "</parameter>", "</invoke>", lines=False)


def _xml(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`<function=NAME><parameter=X>…</parameter></function>` (Qwen3-Coder)."""
    return _QWEN.read(text, found.end(), found["function"], tools)


def _invoked(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`<invoke name="NAME"><parameter name="X">…</parameter></invoke>` (MiniMax)."""
    return _MINIMAX.read(text, found.end(), found["invoked"], tools)


def _keyed(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`<tool_call>NAME<arg_key>X</arg_key><arg_value>…</arg_value></tool_call>` (GLM)."""
    if found["keyed"] not in tools and not text.startswith("<arg_key>", found.end()):
        raise NotCall
    return _GLM.read(text, found.end(), found["keyed"], tools)


def _named(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`[TOOL_CALLS]NAME[ARGS]{…}` (Mistral), whose marks are control tokens and leave no text, or
    `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>` (DeepSeek), or with a type
    before the name and a fence around the arguments (R1), or
    `functions.NAME:0<|tool_call_argument_begin|>{…}` (Kimi K2), or `<function=NAME>{…}` (Llama)."""
    start, end = found.end(), _end(text, found.end())
    said = _escaped(text[start:end])
    if end is None:
        _partial(said, True)
    return [(found["name"] or found["separated"] or found["bare"], said)], end


def _quoted(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`call:NAME{x:<escape>…<escape>,y:1}<end_function_call>` (FunctionGemma; Gemma 4 has other
    marks), told once it is complete."""
    ends = _QUOTED_ENDS.search(text, found.end())
    if ends is None:
        return [], None
    parts = _QUOTES.split(text[found.end() : ends.start()])
    told = "".join(
        _dumped(part) if number % 2 else _BARE_KEY.sub(r'\1"\2":', part)
        for number, part in enumerate(parts)
    )
    _partial(told, True)
    return [(found["quoted"], told)], ends.end()


def _python(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`[NAME(x="…"), …]` (Llama 3.2 and 4), told once it is complete."""
    start = found.start("python")
    for ends in _LIST_ENDS.finditer(text, start):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                calls = ast.parse(text[start : ends.end()], mode="eval").body
        except _UNREADABLE:
            continue
        if not isinstance(calls, ast.List):
            raise NotCall
        return [_python_call(one) for one in calls.elts], ends.end()
    return [], None


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call) or call.args:
        raise NotCall
    try:
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        return ast.unparse(call.func), _dumped(arguments)
    except _UNREADABLE:
        raise NotCall from None


_FORMATS: Mapping[str, Callable[[str, re.Match[str], Schemas], Parsed]]
_FORMATS = {"json": _json, "function": _xml, "name": _named, "python": _python, "bare": _named}
_FORMATS |= {"keyed": _keyed, "separated": _named, "invoked": _invoked, "quoted": _quoted}


def _header(names: Sequence[str]) -> re.Pattern[str]:
    """The header before a call's arguments; `names`: the functions that the request has."""
    marks = "|".join(re.escape(mark) for mark in MARKS if mark != "<function=")
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    return re.compile(
        rf"\s*(?:<tool_calls>\s*(?=<))?(?P<mark>{marks})?\s*(?:(?P<json>\[?\s*(?={{))|"
        r"<function=(?P<bare>[^>\s]+)>\s*(?={)|<function=(?P<function>[^>\s]+)>|"
        rf"(?P<python>\[)\s*(?=[A-Za-z_][\w.]*\()|"
        r"(?<=<tool_call>)\s*(?P<keyed>[\w.:-]+)\s*(?=<arg_key>|</tool_call>)|"
        r"(?(mark)(?:<｜tool▁call▁begin｜>|<\|tool_call_begin\|>)?\s*"
        r"(?:function<｜tool▁sep｜>|functions\.)?(?P<separated>[\w.-]+?)(?::\d+)?\s*"
        r"(?:<｜tool▁sep｜>|\n```json\n|<\|tool_call_argument_begin\|>)\s*(?={)|(?!))|"
        r'<invoke name="(?P<invoked>[^">]+)">|'
        r"(?(mark)call:(?P<quoted>[\w.:-]+)(?={)|(?!))|"
        rf"(?(mark)(?P<name>{known})(?:(?:\[CALL_ID\])?\w{{9}})?(?:\[ARGS\])?\s*(?={{)|(?!)))"
    )


class CallReader:
    """Text, and calls: behind a mark, at the beginning, or behind another call. `only`: a grammar
    allows nothing but calls, so an incomplete one is dropped. `single`: calls after the first are
    dropped."""

    def __init__(self, tools: Schemas, *, only: bool = False, single: bool = False) -> None:
        self._tools = tools
        self._only, self._single, self._begun = only, single, 0
        self._header = _header([*tools])
        self._held = ""
        self._step = self._in_call
        self._told: list[int] = []  # characters of the arguments of each call here

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        found: list[Piece] = []
        goes_on = True
        while goes_on and self._held:
            pieces, goes_on = self._step()
            found += pieces
        return found

    def finish(self) -> Sequence[Piece]:
        no_text = self._only or self._told or self._step == self._behind_call
        return _text("" if no_text else self._held)

    def _in_text(self) -> tuple[list[Piece], bool]:
        held = self._held
        starts = [held.find(mark) for mark in MARKS if mark in held]
        if starts:
            self._step = self._in_call
            at = len(held[: min(starts)].rstrip("\n"))
        else:
            at = len(held) - max(held_back(held, mark, also="\n") for mark in MARKS)
        self._held = held[at:]
        return _text(held[:at]), bool(starts)

    def _in_call(self) -> tuple[list[Piece], bool]:
        try:
            calls, end = self._parsed()
        except NotCall:
            return self._refused(), True
        found: list[Piece] = []
        for number, (name, arguments) in enumerate(calls):
            pieces: list[Piece] = []
            if number == len(self._told):
                self._told.append(0)
                self._begun += 1
                pieces.append(CallBegins(name))
            if new := arguments[self._told[number] :]:
                self._told[number] = len(arguments)
                pieces.append(CallArguments(new))
            if not self._single or self._begun == 1:
                found += pieces
        if end is not None:
            self._held, self._told, self._step = self._held[end:], [], self._behind_call
        return found, end is not None

    def _refused(self) -> list[Piece]:
        held, begun, self._told, self._step = self._held, bool(self._told), [], self._in_text
        rest = held.lstrip()
        mark = next((one for one in MARKS if rest.startswith(one)), "")
        at = len(held) if begun else len(held) - len(rest) + len(mark)
        self._held = held[at:]
        return [] if begun else _text(held[:at])

    def _parsed(self) -> Parsed:
        held = self._held
        header = self._header.match(held)
        if header is not None:
            parse = next(_FORMATS[name] for name in _FORMATS if header[name] is not None)
            return parse(held, header, self._tools)
        begun = held.lstrip()
        marked = any(one.startswith(begun) or begun.startswith(one) for one in MARKS)
        if not (begun == "" or begun[0] in "<[" or marked):
            raise NotCall
        longest = _LONGEST * (3 if begun.startswith(("<｜", "<|tool_call")) else 1)
        if len(begun) > longest + max(map(len, self._tools), default=0):
            raise NotCall
        return [], None

    def _behind_call(self) -> tuple[list[Piece], bool]:
        self._held = self._held.lstrip(" \t\r\n,;]}")
        for mark in CLOSES:
            if self._held.startswith(mark):
                self._held = self._held[len(mark) :]
                return [], True
        if any(mark.startswith(self._held) for mark in CLOSES):
            return [], False
        self._step = self._in_call
        return [], True


class CallOrResponse:
    """An object that is a call, or has the answer as its "response": what the grammar for models
    without tools of their own allows."""

    def __init__(self, tools: Schemas) -> None:
        self._calls = CallReader(tools, only=True)
        self._raw = ""
        self._returned = 0  # characters of the response
        self._calling = False

    def push(self, text: str) -> Sequence[Piece]:
        if self._calling:
            return self._calls.push(text)
        self._raw += text
        value = _partial(self._raw, "trailing-strings") if self._raw.strip() else {}
        if isinstance(value, list) or (value and "response" not in value):
            self._calling = True
            return self._calls.push(self._raw)
        new = str(value.get("response", ""))[self._returned :]
        self._returned += len(new)
        return _text(new)

    def finish(self) -> Sequence[Piece]:
        return self._calls.finish()


def _arguments(call: str, *, complete: bool) -> str:
    """The arguments in a call; those in a string come at once, and none are {}."""
    match = _ARGUMENTS.search(call)
    if match is None:
        return "{}" if complete else ""
    start, end = match.end(), _end(call, match.end())
    if call[start] not in '"n':  # "n" of null
        return call[start:end]
    if end is None:
        return ""
    return str(json.loads(call[start:end]) or "{}").encode("utf-8", "replace").decode()


def _is_text(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"


def _typed(text: str, schema: Any) -> Any:
    """A value that is written without quotes, by the schema of its parameter."""
    if not _is_text(schema):
        for parse in (partial(from_json, allow_inf_nan=False), ast.literal_eval):
            with suppress(*_UNREADABLE):
                value = parse(text.strip())
                _dumped(value)
                return value
    return text


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def _end(text: str, start: int) -> int | None:
    """Where the JSON value that begins there ends; None where it is not complete."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)[1]
    except ValueError:
        return None


def _escaped(text: str) -> str:
    """With line ends in strings as JSON has them: models leave them as they are."""

    def escaped(string: re.Match[str]) -> str:
        return _CONTROL.sub(lambda one: json.dumps(one[0])[1:-1], string[0])

    return _STRING.sub(escaped, text)


def _partial(text: str, mode: Literal[True, "trailing-strings"]) -> Any:
    """The beginning of a JSON value, or NotCall. Half a surrogate pair becomes U+FFFD."""
    try:
        return from_json(text, allow_partial=mode)
    except ValueError:
        pass
    try:
        return from_json(_SURROGATE.sub(r"\\ufffd", text), allow_partial=mode)
    except ValueError:
        raise NotCall from None


def _text(text: str) -> list[Piece]:
    return [Text(text)] if text else []
