"""Readers of tool calls in a model's text, in the formats that models were trained on.

The text of a call so far is parsed again with every piece, so a format is a function of a text.
"""

import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import takewhile
from typing import Any

from localspec.prompting.detokenizer import CLOSES, OPENS, held_back
from localspec.prompting.pieces import CallArguments, CallBegins, Piece, Plain, Thought
from localspec.server.near_json import (
    CHILD,
    OPEN_END,
    PLAIN_WORDS,
    UNREADABLE,
    arguments_of,
    closing_end,
    dump,
    in_string,
    kinds_of,
    missing_end,
    parse_begun,
    parse_nested,
    parse_partial,
    parse_value,
    python_calls,
    quote_words,
    to_json,
)

Schemas = Mapping[str, Mapping[str, Any]]
_Parsed = tuple[list[tuple[str, str]], int | None]
"""Names and arguments (JSON, the last one possibly incomplete) of calls, and the position of their
end; None while they are incomplete."""
_Format = Callable[[str, re.Match[str], Schemas], _Parsed]

FUNCTIONARY = ">>>"
"""The end of functionary's prompts."""
_MARKS = (
    *("<tool_call>", "<function=", "[TOOL_CALLS]", "<tools>", "<function_call>", "```json"),
    *("<|python_tag|>", "<|python_start|>", "<|tool_call_start|>", "<longcat_tool_call>"),
    *("<|tool_call|>", "<TOOLCALL>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>"),
    *("<|START_ACTION|>", "Action:\n```json", "<start_function_call>", "<|tool_call>"),
    *("<seed:tool_call>", "<tool_calls>", "functools[", "<function_calls>", "<|tools_prefix|>"),
    *("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<|action_start|><|plugin|>"),
    *("<｜DSML｜ calls>", "<｜GCML｜tool_calls>", "<atem:function_calls>", "<dots_function_call>"),
    *("<minimax:tool_call>", "<｜tool_calls_begin｜>", "<｜tool_call_begin｜>"),
    *("<|tool_calls|>", "<|tool_call:begin|>", "<function name=", "<|function_call|>", FUNCTIONARY),
    *("function call<|role_sep|>\n", "</response><tools>", "```tool_call", "```tool_code"),
)
_CLOSES = (
    *("</tool_call>", "<|python_end|>", "<|tool_call_end|>", "</tools>", "</function_call>"),
    *("<|/tool_call|>", "</TOOLCALL>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("```<｜tool▁call▁end｜>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    *("</minimax:tool_call>", "<|END_ACTION|>", "```", "</function_calls>", "<|tools_suffix|>"),
    *("</seed:tool_call>", "</tool_calls>", "</function>", "<|action_end|>"),
    *("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>", "<|tool_call:end|>", "<|calls|>"),
    *("</longcat_tool_call>", "<|tool_response>", "<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
    *("</json>", "</call>", "</message>", "</｜GCML｜tool_calls>", "</atem:function_calls>"),
    *("</｜DSML｜ calls>", "</dots_function_call>"),
)
_BEGINS = re.compile("|".join(map(re.escape, _MARKS)))
_CODE = re.compile(r"(?m)^[^`\n]*(?:`[^`\n]*`[^`\n]*)*`\Z")  # before a mark that is quoted
_WITHIN = ("<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call_argument_begin|>")
_SEPARATORS = ("｜DSML｜", "｜GCML｜", "<|role_sep|>", "<｜tool_sep｜>", "<｜tool▁sep｜>")
CONTROL = (*_MARKS, *_CLOSES, *_WITHIN, *_SEPARATORS)
"""Marks around and within calls. If they are control tokens, they must be part of the text."""
_UNMARKED = ("[", "<func", "<invoke", "<｜", "<atem:", "<step", "<call")  # calls without a mark
_LONGEST = 120
"""Limit of characters before a call's name or arguments, without the name."""
_LONG = 500  # characters without a name, if the arguments come first
_NAMES = ("name", "tool_name", "function", "tool")
_BEFORE_NAME = {"arguments", "parameters", "type", "id", "tool_call_id", "function"}
_BEFORE_NAME |= {"tool_call", "tool_calls", "args", "input", "params"}
_LINE = re.compile(
    r"""\n\s*(?:\[?\s*\{\s*(?:("(?:name|type|function|tool|tool_calls?|tool_name)"\s*:)|"\w*"?\s*\Z)"""
    r"|\[?\s*\{?\s*\Z)"
)
"""A line that begins, or may begin, with an unmarked call."""
_CUT = "\0"  # the end of an answer within a call
_QUOTED_ENDS = re.compile(rf"\s*(?:<end_function_call>|<tool_call\|>|(?P<cut>{_CUT}))")
_SPACE = "(?:｜DSML｜ ?|｜GCML｜|atem:|steptml:|longcat_)?"
_OPEN = rf'(?:<parameter="?|<{_SPACE}param(?:eter)? name="|<argument key="|<{_SPACE}arg_key>)'
_PARAMETER = rf'{_OPEN}([^<>"]+)(?:"[^>]*>|</{_SPACE}arg_key>\s*(?:<{_SPACE}arg_value>)?|>\n?)'
_CLOSE = f"</{_SPACE}(?:param|parameter|argument|arg_value)>"
_END = f"(?:</{_SPACE}(?:function|invoke|call|tool_call)>|(?=<tool_call>))"
_BEGUN = re.compile(rf"{_PARAMETER}(.*)", re.DOTALL)
_WHOLE = re.compile(
    rf"{_PARAMETER}(.*?)(?:{_CLOSE}(?=\s*(?:{_OPEN}|{_END}))|</\1>(?=\s*{_OPEN}))", re.DOTALL
)
_IS_TEXT = re.compile(r'[^>]* (?:string="true"|type="string")')
_RAW = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_MAY_END = re.compile(
    r"(?s:\n?</?tool_call>.*|\n?<arg_key>[^<>]*(?:<[^<>]*)?(?:>\s*(?:<[^<>]*)?)?)\Z"
    r"|\n?(?:(?:</[^<>]*>\s*)+(?:<[^<>]*)?|<(?:/|parameter |/｜DSML｜ )?[^<>\s]*)?\Z"
)
"""Text that may be the end of a parameter: closing tags, the next key, and an incomplete tag."""
_UNCLOSED = re.compile(r"(?s)(</arg_key>\s*(?:(?!</arg_value>).)*?)(\n?</?tool_call>)")
_ENDS = re.compile(
    rf"(?:{_CLOSE}|\A|<tool_sep>)\s*{_END}|(?<![>\s])\n</function>(?=\s*</tool_call>)"
    r"|</[\w.-]+>\s*</invoke>(?=\s*(?:<invoke |</tool_call>))"
)


def _read_json(text: str, found: re.Match[str], tools: Schemas) -> _Parsed:
    """`{"name": …, "arguments": {…}}`, in either order (Hermes, Qwen 2.5 and 3, Llama 3, Mistral;
    Command R calls them tool_name and parameters), or `{NAME: {…}}` (Apertus). Without a preceding
    mark of calls, only a tool's name makes it a call."""
    start, end = found.end(), closing_end(text, found.end())
    said = to_json(text[start:end])
    # A name may continue after its quote.
    call = parse_begun(said if end else to_json(OPEN_END.sub("", text[start:])))
    before = set(takewhile(lambda key: key not in _NAMES, call))
    name, only = next((call[key] for key in call if key in _NAMES), None), "".join(call)
    if only in tools and isinstance(call.get(only), dict):
        return ([], None) if end is None else ([(only, dump(call[only]))], end)
    expected = before <= _BEFORE_NAME | tools.keys()
    if name is None and end is None and expected:
        return [], None
    marked = found["mark"] not in (None, "```json")
    if not (expected and isinstance(name, str) and (marked or name in tools)):
        raise ValueError(text)
    return [(name, arguments_of(said, complete=end is not None))], end


def _read_tagged(text: str, found: re.Match[str], tools: Schemas) -> _Parsed:
    """Parameters between tags; a tag that is spelled within a value does not end it:
    `<function=NAME><parameter=X>…</parameter></function>` (Qwen3-Coder),
    `<invoke name="NAME"><parameter name="X">…</parameter></invoke>` (MiniMax, DeepSeek 3.2, Muse,
    GigaChat 3.5, Step3, dots; M3 has `<X>…</X>`; DeepSeek 4.1's names begin with a space),
    `<call tool="NAME" index="1"><argument key="X" type="T">…</argument></call>` (Kimi K3),
    `<function name="NAME"><param name="X"><![CDATA[…]]></param></function>` (MiniCPM 5),
    `<tool_call>NAME<arg_key>X</arg_key><arg_value>…</arg_value></tool_call>` (GLM, Hy3)."""
    name, body, end = found["name"], text[found.end() :], None
    if ends := _ENDS.search(body):
        body, end = body[: ends.end()], found.end() + ends.end()
    if name not in tools and not found[0].endswith(">") and re.match(_END, body):
        raise ValueError(text)
    members, at = list[str](), 0
    root = tools.get(name, {})
    known = root.get("properties")
    known = known if isinstance(known, Mapping) else {}
    names = "|".join(map(re.escape, known)) or "(?!)"
    gap = rf"(?<![>\s])(?:\n?(?=<arg_key>(?:{names})</arg_key>\s*<arg_value>)"
    gap += rf'|\n(?=<parameter(?:=| name=")(?:{names})"?>'
    gap += r"|</function>\Z))" if end is not None else "))"
    body = re.sub(gap, "</parameter>\n", body)  # models forget to close parameters, and calls
    body += "</tool_call>" * (end is not None)
    for parameter in _WHOLE.finditer(body):
        value = parameter[2]
        if parameter[0].startswith("<parameter="):
            value = value.removesuffix("\n")
        raw = _RAW.fullmatch(value) or (_IS_TEXT.match(parameter[0]) and [value, value])
        value = raw[1] if raw else parse_value(value, kinds_of(known.get(parameter[1]), root))
        members.append(f"{dump(parameter[1])}: {dump(value)}")
        at = parameter.end()
    if end is not None and not members:
        for key, value in CHILD.findall(body):
            kinds = kinds_of(known.get(key), root)
            members.append(f"{dump(key)}: {dump(parse_nested(value, kinds))}")
    begun = _BEGUN.search(body, at)
    if end is None and begun and not "<![CDATA[".startswith(begun[2][:9]):
        kinds, said = kinds_of(known.get(begun[1]), root), begun[2].removesuffix(_CUT)
        value = _MAY_END.sub("", said, count=1)
        if kinds == {str}:
            members.append(f"{dump(begun[1])}: {dump(value)[:-1]}")
        elif said != begun[2]:
            members.append(f"{dump(begun[1])}: {dump(parse_value(value, kinds))}")
    return [(name, "{" + ", ".join(members) + "}" * (end is not None))], end


def _read_named(text: str, found: re.Match[str], tools: Schemas) -> _Parsed:
    """A name, then its arguments as JSON, see `_formats`."""
    start, end = found.end(), closing_end(text, found.end())
    said = to_json(text[start:end])
    parse_begun(said)
    said = OPEN_END.sub("", said) if end is None else said
    return [(found["name"], said)], end


def _read_quoted(text: str, found: re.Match[str], tools: Schemas) -> _Parsed:
    """`call:NAME{x:<escape>…<escape>,y:1}<end_function_call>` (FunctionGemma; Gemma 4 has other
    marks), sent once it is complete."""
    ends = _QUOTED_ENDS.search(text, found.end())
    if ends is None:
        return [], None
    parts = re.split(r'<escape>|<\|"\|>', text[found.end() : ends.start()])
    members = "".join(
        dump(part) if number % 2 else quote_words(part) for number, part in enumerate(parts)
    )
    members = members[:-1] if len(parts) % 2 == 0 else members  # within a text
    members += "" if ends["cut"] else missing_end(members)
    parse_partial(members, True)
    return [(found["name"], members)], ends.end()


def _read_python(text: str, found: re.Match[str], tools: Schemas) -> _Parsed:
    """`[NAME(x="…"), …]` (Llama 3.2 and 4) or `NAME(x="…")` (OLMo 3), sent once complete. Without a
    mark, it fills a line."""
    start, end = found.end(), closing_end(text, found.end(), PLAIN_WORDS)
    rest = "" if end is None else (found["mark"] and "\n") or text[end:].lstrip(" \t")
    if end is None or not rest:
        return [], None
    if rest[0] not in "\n;,<":
        raise ValueError(text)
    try:
        return python_calls(text[start:end]), end
    except UNREADABLE:
        raise ValueError(text) from None


@lru_cache(maxsize=16)  # takes 10 ms, and agents offer the same tools in each request
def _formats(names: tuple[str, ...]) -> list[tuple[re.Pattern[str], _Format]]:
    """The header of a call and the function that reads its arguments, by format. `names`: the
    request's functions."""
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    marks = sorted((one for one in _MARKS if one != "<function="), key=len, reverse=True)
    one = f"(?:{'|'.join(map(re.escape, marks))})"
    mark = rf"\s*(?P<mark>{one}(?:\s*{one})*)\s*"
    maybe = rf"(?:{mark}|\s*)"
    table: tuple[tuple[str, _Format], ...] = (
        (rf"\s*{FUNCTIONARY}all\n", lambda text, found, tools: ([], found.end())),  # before text
        (
            rf'{maybe}(?:{{\s*"tool_calls?"\s*:\s*)?\[?\s*'
            rf'(?:{{[^{{}}]{{,200}}"function"\s*:\s*|{{(?={{))?(?={{)',  # some double the brackets
            _read_json,
        ),
        (  # Llama 3.1, Kimi K3
            rf'{maybe}<(?:function=|call tool="(?=[^>]*><json))(?P<name>[^">\s{{]+)'
            r"(?:[^>]*><json[^>{]*)?>?\s*(?={)",
            _read_named,
        ),
        (
            rf"{maybe}(?:function<｜tool_sep｜>)?"
            rf'<(?:function(?:="?| name=")|{_SPACE}invoke name="|call tool=")'
            r'(?P<name>[^>"\s]+)(?:"[^>]*)?>',
            _read_tagged,
        ),
        (
            rf"{mark}(?<=tool_call>)\s*(?P<name>[\w.:-]+)\s*"
            rf"(?=<tool_sep>|<{_SPACE}arg_key>|</{_SPACE}tool_call>)",
            _read_tagged,
        ),
        (rf"{maybe}(?=\[\s*[A-Za-z_][\w.]*\(|(?:{known})(?:\.call)?\()", _read_python),
        (
            # DeepSeek, R1 (with a type before the name and a fence after it), Kimi K2, Solar.
            rf"{mark}(?:function<｜tool▁sep｜>|functions[._]?(?={known})|functions\.|"
            rf"\w*<\|tool_call:name\|>)?(?P<name>(?P<known>{known})|[\w.-]+?)"
            r"(?(known)[:_]?\d*|(?::\d+)?)\s*(?:<｜tool▁sep｜>|\n```json\n|"
            r"<\|tool_call_argument_begin\|>|<\|tool_call:args\|>)\s*(?={)",
            _read_named,
        ),
        (rf"{mark}call:(?P<name>[\w.:-]+)(?={{)", _read_quoted),
        # Mistral, whose marks are control tokens and leave no text; functionary.
        (
            rf"{mark}(?:function<｜tool▁sep｜>)?(?P<name>{known})"
            rf"(?:(?:\[CALL_ID\])?\w{{9}})?(?:\[ARGS\])?\s*(?={{)",
            _read_named,
        ),
    )
    return [(re.compile(pattern), read) for pattern, read in table]


class CallReader:
    """Reads text, calls, and thoughts between calls. A call follows a mark, the beginning, or
    another call. The valid JSON of a broken call stays a call and the rest is text, wherever pieces
    end. `only`: a grammar allows only calls, so incomplete ones are dropped. `single`: calls after
    the first are dropped. `begun`: the mark at the end of the prompt."""

    def __init__(
        self, tools: Schemas, *, only: bool = False, single: bool = False, begun: str = ""
    ) -> None:
        self._tools = tools
        self._only, self._single, self._call_count = only, single, 0
        self._formats = _formats(tuple(tools))
        self._held, self._line, self._due = begun, "", 0
        self._step = self._in_call
        self._reader: _Format = _read_json
        self._emitted: list[int] = []  # characters of each call's arguments sent so far

    def push(self, text: str) -> Sequence[Piece]:
        self._held += text
        # Parsing long arguments with every token would take quadratic time.
        return self._read_pieces() if len(self._held) >= self._due else []

    def _read_pieces(self) -> list[Piece]:
        found: list[Piece] = []
        continues = True
        while continues and self._held:
            pieces, continues = self._step()
            found += pieces
        long = self._step == self._in_call and len(self._held) > _LONG
        self._due = len(self._held) * 17 // 16 if self._emitted or long else 0
        return found

    def finish(self) -> Sequence[Piece]:
        self._held += CLOSES if self._held.startswith(OPENS) else ""
        found = self._read_pieces()
        if calling := self._step == self._in_call:
            held = _UNCLOSED.sub(r"\1</arg_value>\2", self._held)
            cuts: dict[_Format, str] = {_read_quoted: _CUT, _read_tagged: _CUT}  # cut values count
            cuts[_read_json] = "" if in_string(held) else ","
            for end in ("</tool_call>", cuts.get(self._reader, "")):  # models forget to close calls
                with suppress(ValueError):
                    calls, at = self._parse_call(held + end)
                    if at or (calls and end != "</tool_call>"):
                        self._held = held + end
                        found += self._read_pieces()
                        break
        cut = self._emitted or (calling and self._reader is _read_quoted)
        no_text = self._only or cut or self._step == self._after_call
        rest, self._held, self._emitted, self._step = self._held, "", [], self._in_call
        return [*found, *Plain().push("" if no_text else rest)]

    def _in_text(self) -> tuple[Sequence[Piece], bool]:
        held = self._held
        line = _LINE.search(held)
        begins = (one.start() for one in _BEGINS.finditer(held))
        plain = (at for at in begins if not _CODE.search(self._line + held[:at]))
        called = line.start() if line is not None and line[1] else None
        starts = [at for at in (next(plain, None), called) if at is not None]
        if starts:
            self._step = self._in_call
            at = len(held[: min(starts)].rstrip("\n"))
        else:
            marks = (*(mark for mark in _MARKS if mark[0] in held), "\n")
            at = len(held) - max(held_back(held, mark, also="\n") for mark in marks)
            at = at if line is None else min(at, line.start())
        self._held, self._line = held[at:], (self._line + held[:at]).rpartition("\n")[2]
        return Plain().push(held[:at]), bool(starts)

    def _in_call(self) -> tuple[Sequence[Piece], bool]:
        try:
            calls, end = self._parse_call(self._held)
        except ValueError:  # what was a call before stays one, wherever pieces of text end
            end = bisect(range(len(self._held)), False, key=self._breaks) - 1
            calls = self._parse_call(self._held[:end])[0]
            calls = [(name, said + missing_end(said)) for name, said in calls]
            if not calls:
                rest, self._step = self._held.lstrip(), self._in_text
                mark = next((one for one in _MARKS if rest.startswith(one)), "")
                text = self._held.removesuffix(rest) + mark
                self._held = rest.removeprefix(mark)
                return Plain().push(text), True
        found: list[Piece] = []
        for number, (name, arguments) in enumerate(calls):
            plain, pieces = name.strip().removeprefix("functions."), list[Piece]()
            if number == len(self._emitted):
                self._emitted.append(0)
                self._call_count += 1
                pieces.append(CallBegins(plain if plain in self._tools else name))
            if new := arguments[self._emitted[number] :]:
                self._emitted[number] = len(arguments)
                pieces.append(CallArguments(new))
            if not self._single or self._call_count == 1:
                found += pieces
        if end is not None:
            self._held, self._emitted, self._step = self._held[end:], [], self._after_call
        return found, end is not None

    def _breaks(self, length: int) -> bool:
        with suppress(ValueError):
            self._parse_call(self._held[:length])
            return False
        return True

    def _parse_call(self, held: str) -> _Parsed:
        begun = held.lstrip()
        for header, read in self._formats:
            if found := header.match(held):
                self._reader = read
                return read(held, found, self._tools)
        bare = (f"{name}{after}" for name in self._tools for after in ("(", ".call("))
        marks = (*_MARKS, *_UNMARKED, *bare)
        if not any(one.startswith(begun) or begun.startswith(one) for one in marks):
            raise ValueError(held)
        if len(begun) > _LONGEST + max(map(len, self._tools), default=0):
            raise ValueError(held)
        return [], None

    def _after_call(self) -> tuple[Sequence[Piece], bool]:
        self._held = self._held.lstrip(" \t\r\n,;]}")
        if any(mark.startswith(self._held) for mark in (*_MARKS, *_CLOSES, OPENS)):
            return [], False
        if self._held.startswith(OPENS):
            thought, closed, rest = self._held.removeprefix(OPENS).partition(CLOSES)
            self._held = rest if closed else self._held
            return [Thought(thought.strip("\n"))] if closed else [], bool(closed)
        for mark in () if self._held.startswith(_MARKS) else _CLOSES:
            if self._held.startswith(mark):
                self._held = self._held[len(mark) :]
                return [], True
        self._step = self._in_call
        return [], True
