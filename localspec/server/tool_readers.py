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
from functools import lru_cache, partial
from typing import Any, Literal

from pydantic_core import from_json

from localspec.llama.intended_schema import resolve_reference
from localspec.prompting.detokenizer import held_back
from localspec.prompting.pieces import CallArguments, CallBegins, Piece, Text

Schemas = Mapping[str, Mapping[str, Any]]
Parsed = tuple[list[tuple[str, str]], int | None]
"""Names and arguments (JSON, of which the last may be a beginning) of calls, and where these end;
None where they go on."""
_Format = Callable[[str, re.Match[str], Schemas], Parsed]

FUNCTIONARY = ">>>"
"""What its prompts end with."""
_MARKS = (
    *("<tool_call>", "<function=", "[TOOL_CALLS]", "<tools>", "<function_call>", "```json"),
    *("<|python_tag|>", "<|python_start|>", "<|tool_call_start|>", "<longcat_tool_call>"),
    *("<|tool_call|>", "<TOOLCALL>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<minimax:tool_call>"),
    *("<|START_ACTION|>", "Action:\n```json", "<start_function_call>", "<|tool_call>"),
    *("<seed:tool_call>", "<tool_calls>", "functools[", "<function_calls>", "<|tools_prefix|>"),
    *("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<|action_start|><|plugin|>"),
    *("<|tool_calls|>", "<|tool_call:begin|>", "<function name=", "<|function_call|>", FUNCTIONARY),
    "function call<|role_sep|>\n",
)
_CLOSES = (
    *("</tool_call>", "<|python_end|>", "<|tool_call_end|>", "</tools>", "</function_call>"),
    *("<|/tool_call|>", "</TOOLCALL>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("```<｜tool▁call▁end｜>", "<|tool_calls_section_end|>", "</longcat_tool_call>"),
    *("</minimax:tool_call>", "<|END_ACTION|>", "```", "</function_calls>", "<|tools_suffix|>"),
    *("</seed:tool_call>", "</tool_calls>", "</function>", "<|action_end|>"),
    *("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>", "<|tool_call:end|>", "<|calls|>"),
    "<|tool_response>",
)
_FORGOTTEN = re.compile(rf"\s*(?:{'|'.join(map(re.escape, (*_CLOSES, *_MARKS)))})")
_WITHIN = ("<|tool_call:name|>", "<|tool_call:args|>", "｜DSML｜", "<|role_sep|>")
CONTROL = (*_MARKS, *_CLOSES, *_WITHIN)
"""Around and within calls: those that are control tokens of a model have to be seen."""
_LONGEST = 120
"""Characters before a call's name or arguments, apart from its name."""
_BEFORE_NAME = {"arguments", "parameters", "type", "id", "tool_call_id", "function"}
_BEFORE_NAME |= {"tool_call", "tool_calls"}
_LINE = re.compile(
    r"""\n\s*(?:\[?\s*\{\s*(?:("(?:name|type|function|tool_calls?|tool_name)"\s*:)|"\w*"?\s*\Z)"""
    r"|\[?\s*\{?\s*\Z)"
)
"""Where a line begins as a call without a mark, or may begin so."""
_ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:\s*(?=\S)')
_QUOTES = re.compile(r'<escape>|<\|"\|>')
_BARE = re.compile(r""""(?:[^"\\]|\\.)*"|([^\s{}[\],:"][^{}[\],:"]*?)(\s*)(?=([:,\]}]))""")
_QUOTED_ENDS = re.compile(r"\s*(?:<end_function_call>|<tool_call\|>)")
_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_PLAIN_WORDS, _WORDS = (
    re.compile(
        r"""("{3}|'{3})(?:[^\\]|\\.)*?(?:\1|\Z)"""
        rf"""|(["'])((?:(?!\2)[^\\]|\\.|\\\Z|{inner})*)(\2?)"""
        r"|[][(){}]|\b[TFNtfn]\w*|,\s*(?=[]}]|\Z)",
        re.DOTALL,
    )
    for inner in ("(?!)", r"\2(?!\s*(?:[]}:,]|\Z))")
)
"""Strings of JSON and Python, brackets, commas before these, and what may be True, False or None in
either. The second has strings with quotes in them, as models write code in JSON."""
_OPEN_END = re.compile(r"[\"']\s*\Z")
"""What may be within a string yet."""
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_OF_PYTHON = {other: one for one, other in _LITERALS.items()}
_ESCAPES = re.compile(
    r"""(?s)(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\(u[0-9a-fA-F]{0,3})?\Z"""
    r"""|(?:\\|(?=[\0-\x1f"]))(.)"""
)
"""In a string: an escape of JSON, the beginning of one, what JSON escapes and what it does not."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
_TYPES |= {"array": list, "null": type(None)}
_OPEN = r'(?:<parameter="?|<(?:｜DSML｜)?param(?:eter)? name="|<arg_key>)'
_PARAMETER = rf'{_OPEN}([^<>"]+)(?:"[^>]*>|</arg_key>\s*<arg_value>|>\n?)'
_CLOSE = "</(?:｜DSML｜)?(?:param|parameter|arg_value)>"
_END = "</(?:｜DSML｜)?(?:function|invoke|tool_call)>"
_BEGUN = re.compile(rf"{_PARAMETER}(.*)", re.DOTALL)
_WHOLE = re.compile(rf"{_PARAMETER}(.*?){_CLOSE}(?=\s*(?:{_OPEN}|{_END}))", re.DOTALL)
_CHILD = re.compile(r"<([^<>/\s]+)>(.*?)</\1>", re.DOTALL)
_RAW = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_MAY_END = re.compile(rf"\n?{_CLOSE}\s*(?:<[^>]*)?\Z")
_ENDS = re.compile(
    rf"(?:{_CLOSE}|\A)\s*{_END}|</[\w.-]+>\s*</invoke>(?=\s*(?:<invoke |</tool_call>))"
)


class _NotCall(ValueError):
    """The text cannot be a call."""


def _json(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`{"name": …, "arguments": {…}}`, in either order (Hermes, Qwen 2.5 and 3, Llama 3, Mistral;
    Command R calls them tool_name and parameters), or `{NAME: {…}}` (Apertus). Only a tool's name
    makes it a call where no mark of calls precedes it."""
    start, end = found.end(), _closing(text, found.end())
    more = ""
    if end is None and (inner := _ARGUMENTS.search(text, start)):
        at = _closing(text, inner.end()) or len(text)
        if _FORGOTTEN.match(text, at):  # a bracket, as models do
            end, more = at, "}"
    said = _as_json(text[start:end]) + more
    call = _partial(said, True)
    name, only = call.get("name", call.get("tool_name")), "".join(call)
    if only in tools and isinstance(call.get(only), dict):
        return ([], None) if end is None else ([(only, _dumped(call[only]))], end)
    if name is None and end is None and call.keys() <= _BEFORE_NAME | tools.keys():
        return [], None
    marked = found["mark"] not in (None, "```json")
    if not isinstance(name, str) or (not marked and name not in tools):
        raise _NotCall
    return [(name, _arguments(said, complete=end is not None))], end


def _tagged(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """Parameters between tags, where a value that spells one of them does not end:
    `<function=NAME><parameter=X>…</parameter></function>` (Qwen3-Coder),
    `<invoke name="NAME"><parameter name="X">…</parameter></invoke>` (MiniMax, DeepSeek 3.2; M3
    has `<X>…</X>`),
    `<function name="NAME"><param name="X"><![CDATA[…]]></param></function>` (MiniCPM 5),
    `<tool_call>NAME<arg_key>X</arg_key><arg_value>…</arg_value></tool_call>` (GLM)."""
    name, body, end = found["name"], text[found.end() :], None
    if ends := _ENDS.search(body):
        body, end = body[: ends.end()], found.end() + ends.end()
    if name not in tools and not found[0].endswith(">") and body.startswith("</tool_call>"):
        raise _NotCall
    told, at = list[str](), 0
    root = tools.get(name, {})
    known = root.get("properties")
    known = known if isinstance(known, Mapping) else {}
    for parameter in _WHOLE.finditer(body):
        value = parameter[2]
        if parameter[0].startswith("<parameter="):
            value = value.removesuffix("\n")
        raw = _RAW.fullmatch(value)
        value = raw[1] if raw else _typed(value, _kinds(known.get(parameter[1]), root))
        told.append(f"{_dumped(parameter[1])}: {_dumped(value)}")
        at = parameter.end()
    if end is not None and not told:
        for key, value in _CHILD.findall(body):
            kinds = _kinds(known.get(key), root)
            told.append(f"{_dumped(key)}: {_dumped(_nested(value, kinds))}")
    begun = _BEGUN.search(body, at)
    grows = begun is not None and not "<![CDATA[".startswith(begun[2][:9])
    if end is None and begun and grows and _kinds(known.get(begun[1]), root) == {str}:
        said, may_end = begun[2], _MAY_END.search(begun[2])
        marks = ("</param>", "</parameter>", "</｜DSML｜parameter>", "</arg_value>")
        held = max(held_back(said, mark, also="\n") for mark in marks)
        value = said[: len(said) - held if may_end is None else may_end.start()]
        told.append(f"{_dumped(begun[1])}: {_dumped(value)[:-1]}")
    return [(name, "{" + ", ".join(told) + "}" * (end is not None))], end


def _nested(value: str, kinds: set[type]) -> Any:
    """A value of MiniMax M3: items of a list, or members of an object, are tags within it."""
    inner = _CHILD.findall(value) if not kinds or kinds & {dict, list} else ()
    if not inner:
        return _typed(value, kinds)
    found = [(key, _nested(one, set())) for key, one in inner]
    return (
        dict(found) if kinds & {dict} or {*dict(found)} != {"item"} else [one for _, one in found]
    )


def _named(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """A name, then its arguments as JSON, see `_formats`."""
    start, end = found.end(), _closing(text, found.end())
    said = _as_json(text[start:end])
    if end is None:
        _partial(said, True)
        said = _OPEN_END.sub("", said)
    return [(found["name"], said)], end


def _quoted(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`call:NAME{x:<escape>…<escape>,y:1}<end_function_call>` (FunctionGemma; Gemma 4 has other
    marks), told once it is complete."""
    ends = _QUOTED_ENDS.search(text, found.end())
    if ends is None:
        return [], None
    parts = _QUOTES.split(text[found.end() : ends.start()])
    told = "".join(
        _dumped(part) if number % 2 else _BARE.sub(_bare, part) for number, part in enumerate(parts)
    )
    _partial(told, False)
    return [(found["name"], told)], ends.end()


def _bare(found: re.Match[str]) -> str:
    """A word without quotes, as JSON."""
    said = found[1] or ""
    with suppress(ValueError):
        if found[3] != ":":
            json.loads(_as_json(said))
            return _as_json(said)
    return _dumped(said) + found[2] if said else found[0]


def _python(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`[NAME(x="…"), …]` (Llama 3.2 and 4) or `NAME(x="…")` (OLMo 3), told once complete."""
    start, end = found.end(), _closing(text, found.end(), _PLAIN_WORDS)
    if end is None:
        return [], None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = _PLAIN_WORDS.sub(lambda word: _OF_PYTHON.get(word[0], word[0]), text[start:end])
            calls = ast.parse(said, mode="eval").body
        return [_python_call(one) for one in getattr(calls, "elts", [calls])], end
    except _UNREADABLE:
        raise _NotCall from None


def _python_call(call: ast.expr) -> tuple[str, str]:
    if not isinstance(call, ast.Call) or call.args:
        raise _NotCall
    arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return ast.unparse(call.func), _dumped(arguments)


@lru_cache(maxsize=16)  # it takes ten milliseconds, and an agent offers the same in each request
def _formats(names: tuple[str, ...]) -> list[tuple[re.Pattern[str], _Format]]:
    """What a call has before its arguments, by format, and what reads these; `names`: the functions
    that the request has."""
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    marks = sorted((one for one in _MARKS if one != "<function="), key=len, reverse=True)
    one = f"(?:{'|'.join(map(re.escape, marks))})"
    mark = rf"\s*(?P<mark>{one}(?:\s*{one})*)\s*"
    maybe = rf"(?:{mark}|\s*)"
    table: tuple[tuple[str, _Format], ...] = (
        (rf"\s*{FUNCTIONARY}all\n", lambda text, found, tools: ([], found.end())),  # before text
        (
            rf'{maybe}(?:{{\s*"tool_calls?"\s*:\s*)?\[?\s*'
            rf'(?:{{[^{{}}]{{,200}}"function"\s*:\s*)?(?={{)',
            _json,
        ),
        (rf"{maybe}<function=(?P<name>[^>\s]+)>\s*(?={{)", _named),  # Llama 3.1
        (
            rf'{maybe}<(?:function(?:="?| name=")|(?:｜DSML｜)?invoke name=")(?P<name>[^>"\s]+)"?>',
            _tagged,
        ),
        (rf"{mark}(?<=<tool_call>)\s*(?P<name>[\w.:-]+)\s*(?=<arg_key>|</tool_call>)", _tagged),
        (rf"{maybe}(?=\[\s*[A-Za-z_][\w.]*\(|(?:{known})\()", _python),
        (
            # DeepSeek, R1 (with a type before the name and a fence behind it), Kimi K2, Solar.
            rf"{mark}(?:function<｜tool▁sep｜>|functions\.|\w*<\|tool_call:name\|>)?"
            r"(?P<name>[\w.-]+?)(?::\d+)?\s*(?:<｜tool▁sep｜>|\n```json\n|"
            r"<\|tool_call_argument_begin\|>|<\|tool_call:args\|>)\s*(?={)",
            _named,
        ),
        (rf"{mark}call:(?P<name>[\w.:-]+)(?={{)", _quoted),
        # Mistral, whose marks are control tokens and leave no text; functionary.
        (rf"{mark}(?P<name>{known})(?:(?:\[CALL_ID\])?\w{{9}})?(?:\[ARGS\])?\s*(?={{)", _named),
    )
    return [(re.compile(pattern), read) for pattern, read in table]


class CallReader:
    """Text, and calls: behind a mark, at the beginning, or behind another call. `only`: a grammar
    allows nothing but calls, so an incomplete one is dropped. `single`: calls after the first are
    dropped. `begun`: what the prompt ended with."""

    def __init__(
        self, tools: Schemas, *, only: bool = False, single: bool = False, begun: str = ""
    ) -> None:
        self._tools = tools
        self._only, self._single, self._begun = only, single, 0
        self._formats = _formats(tuple(tools))
        self._held, self._due = begun, 0
        self._step = self._in_call
        self._reads: _Format = _json
        self._told: list[int] = []  # characters of the arguments of each call here

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        # Long arguments are not parsed with every token: that would take the square of their time.
        return self._found() if len(self._held) >= self._due else []

    def _found(self) -> list[Piece]:
        found: list[Piece] = []
        goes_on = True
        while goes_on and self._held:
            pieces, goes_on = self._step()
            found += pieces
        self._due = len(self._held) * 17 // 16 if self._told else 0
        return found

    def finish(self) -> Sequence[Piece]:
        found, held = self._found(), self._held
        if self._told or self._reads is _quoted:  # what was not closed, as models forget
            self._held = held + ("<tool_call|>" if self._reads is _quoted else "</tool_call>")
            with suppress(_NotCall):
                found += self._found() if self._reads is not _json and self._parsed()[1] else ()
        cut = self._told or (self._reads is _quoted and self._step == self._in_call)
        no_text = self._only or cut or self._step == self._behind_call
        return [*found, *_text("" if no_text else self._held)]

    def _in_text(self) -> tuple[list[Piece], bool]:
        held = self._held
        marks = [mark for mark in _MARKS if mark[0] in held]
        starts = [held.find(mark) for mark in marks if mark in held]
        line = _LINE.search(held)
        if line is not None and line[1]:
            starts.append(line.start())
        if starts:
            self._step = self._in_call
            at = len(held[: min(starts)].rstrip("\n"))
        else:
            at = len(held) - max(held_back(held, mark, also="\n") for mark in (*marks, "\n"))
            at = at if line is None else min(at, line.start())
        self._held = held[at:]
        return _text(held[:at]), bool(starts)

    def _in_call(self) -> tuple[list[Piece], bool]:
        try:
            calls, end = self._parsed()
        except _NotCall:
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
        mark = next((one for one in _MARKS if rest.startswith(one)), "")
        at = len(held) if begun else len(held) - len(rest) + len(mark)
        self._held = held[at:]
        return [] if begun else _text(held[:at])

    def _parsed(self) -> Parsed:
        held, begun = self._held, self._held.lstrip()
        for header, read in self._formats:
            if found := header.match(held):
                self._reads = read
                return read(held, found, self._tools)
        marks = (*_MARKS, *(f"{name}(" for name in self._tools))
        marked = any(one.startswith(begun) or begun.startswith(one) for one in marks)
        if not (begun == "" or begun[0] in "<[" or marked):
            raise _NotCall
        if len(begun) > _LONGEST + max(map(len, self._tools), default=0):
            raise _NotCall
        return [], None

    def _behind_call(self) -> tuple[list[Piece], bool]:
        self._held = self._held.lstrip(" \t\r\n,;]}")
        for mark in _CLOSES:
            if self._held.startswith(mark):
                self._held = self._held[len(mark) :]
                return [], True
        if any(mark.startswith(self._held) for mark in _CLOSES):
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
        return call[start:end] if complete else _OPEN_END.sub("", call[start:end])
    if end is None:
        return ""
    return str(json.loads(call[start:end]) or "{}").encode("utf-8", "replace").decode()


def _kinds(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[type]:
    """Types that a value may have by its schema; none where any may come."""
    said = (
        resolve_reference(dict(schema), root) if isinstance(schema, Mapping) and depth < 9 else {}
    )
    parts = next((said[one] for one in ("anyOf", "oneOf", "allOf", "$ref") if said.get(one)), ())
    if options := [_kinds(one, root, depth + 1) for one in parts]:
        return set().union(*options) if all(options) else set()
    if "const" in said or "enum" in said:
        return {*map(type, said.get("enum") or [said.get("const")])}
    named = said.get("type") or ()
    named = [named] if isinstance(named, str) else named
    return {_TYPES[name] for name in named if name in _TYPES}


def _typed(text: str, kinds: set[type]) -> Any:
    """A value that is written without quotes, of one of some types."""
    for parse in (partial(from_json, allow_inf_nan=False), ast.literal_eval):
        with suppress(*_UNREADABLE):
            value = json.loads(_dumped(parse(text.strip())))
            allowed = kinds - {str} | ({int} if float in kinds else set())
            return value if str not in kinds or type(value) in allowed else text
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


def _closing(text: str, start: int, words: re.Pattern[str] = _WORDS) -> int | None:
    """Where the brackets that open there are closed; None where they are not."""
    depth = 0
    for word in words.finditer(text, start):
        depth += (word[0] in "([{") - (word[0] in ")]}")
        if depth == 0 and word[0] in ")]}":
            return word.end()
    return None


def _escaped(closed: str, part: re.Match[str]) -> str:
    valid, begun, other = part.groups(default="")
    if valid or not (closed or other):
        return valid
    slash = "\\\\" if part[0][0] == "\\" and other != "'" else ""
    return slash + begun + json.dumps(other, ensure_ascii=False)[1:-1]


def _as_json(text: str) -> str:
    """JSON of what is nearly that: with single quotes, Python's literals, line ends or escapes of
    its own in strings, or commas at ends. Of a beginning the beginning."""

    def word(found: re.Match[str]) -> str:
        said = found[0]
        if said[0] == ",":
            return ""
        if found[2]:
            return f'"{_ESCAPES.sub(partial(_escaped, found[4]), found[3])}' + '"' * len(found[4])
        return next(
            (_LITERALS[one][: len(said)] for one in _LITERALS if one.startswith(said)), said
        )

    return _WORDS.sub(word, text)


def _partial(text: str, mode: Literal[True, False, "trailing-strings"]) -> Any:
    """A JSON value, by the mode also the beginning of one, or _NotCall. Half a surrogate pair
    becomes U+FFFD."""
    try:
        return from_json(text, allow_partial=mode)
    except ValueError:
        pass
    try:
        return from_json(_SURROGATE.sub(r"\\ufffd", text), allow_partial=mode)
    except ValueError:
        raise _NotCall from None


def _text(text: str) -> list[Piece]:
    return [Text(text)] if text else []
