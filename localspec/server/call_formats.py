"""Formats of tool calls that models were trained on.

The text of a call so far is parsed again with every piece, so a format is a function of a text.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any

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
    parse_value,
    python_calls,
    quote_words,
    to_json,
)

Schemas = Mapping[str, Mapping[str, Any]]
Parsed = tuple[list[tuple[str, str]], int | None]
"""Names and arguments (JSON, the last one possibly incomplete) of calls, and the position of their
end; None while they are incomplete."""
Format = Callable[[str, re.Match[str], Schemas], Parsed]

FUNCTIONARY = ">>>"
"""The end of functionary's prompts."""
CALL_MARKS = (
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
    *("<|plamo:begin_tool_requests:plamo|>", "<|plamo:begin_tool_request:plamo|>"),
    "<use_mcp_tool>",
)
END_MARKS = (
    *("</tool_call>", "<|python_end|>", "<|tool_call_end|>", "</tools>", "</function_call>"),
    *("<|/tool_call|>", "</TOOLCALL>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
    *("```<｜tool▁call▁end｜>", "<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
    *("</minimax:tool_call>", "<|END_ACTION|>", "```", "</function_calls>", "<|tools_suffix|>"),
    *("</seed:tool_call>", "</tool_calls>", "</function>", "<|action_end|>"),
    *("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>", "<|tool_call:end|>", "<|calls|>"),
    *("</longcat_tool_call>", "<|tool_response>", "<｜tool_call_end｜>", "<｜tool_calls_end｜>"),
    *("</json>", "</call>", "</message>", "</｜GCML｜tool_calls>", "</atem:function_calls>"),
    *("</｜DSML｜ calls>", "</dots_function_call>", "</arguments>", "</use_mcp_tool>"),
    *(f"<|plamo:end_tool_{one}:plamo|>" for one in ("arguments", "request", "requests")),
)
_WITHIN = ("<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call_argument_begin|>")
_SEPARATORS = ("｜DSML｜", "｜GCML｜", "<|role_sep|>", "<｜tool_sep｜>", "<｜tool▁sep｜>")
_OF_PLAMO = ("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>")
CONTROL = (*CALL_MARKS, *END_MARKS, *_WITHIN, *_SEPARATORS, *_OF_PLAMO)
"""Marks around and within calls. If they are control tokens, they must be part of the text."""
_NAMES = ("name", "tool_name", "function", "tool")
_BEFORE_NAME = {"arguments", "parameters", "type", "id", "tool_call_id", "function"}
_BEFORE_NAME |= {"tool_call", "tool_calls", "args", "input", "params"}
_CUT = "\0"  # the end of an answer within a call
_QUOTED_ENDS = re.compile(rf"<end_function_call>|<tool_call\|>|(?P<cut>{_CUT})")
_KEYWORD = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([(,]\s*\w+)\s*=""")
_SPACE = "(?:｜DSML｜ ?|｜GCML｜|atem:|steptml:|longcat_)?"
_OPEN = rf'(?:<parameter=|<{_SPACE}param(?:eter)? name="|<argument key="|<{_SPACE}arg_key>)'
_VALUE = rf"</{_SPACE}arg_key>\s*(?!\s)(?:<{_SPACE}arg_value>)?"
_PARAMETER = rf'{_OPEN}([^<>"]+)(?:"[^>]*>|{_VALUE}|>\n?)'
_CLOSE = f"</{_SPACE}(?:param|parameter|argument|arg_value)>"
_END = f"(?:</{_SPACE}(?:function|invoke|call|tool_call)>|(?=<tool_call>))"
_BEGUN = re.compile(rf"{_PARAMETER}(.*)", re.DOTALL)
_WHOLE = re.compile(
    rf"{_PARAMETER}(.*?)(?:{_CLOSE}(?=\s*(?:{_OPEN}|{_END}))|</\1>(?=\s*{_OPEN}))", re.DOTALL
)
_IS_TEXT = re.compile(r'[^>]* (?:string="true"|type="string")')
_RAW = re.compile(r"<!\[CDATA\[(.*)\]\]>", re.DOTALL)
_STRAY = re.compile(rf"(?:\n{_CLOSE})+\Z")  # some models repeat the closing tag
_MAY_END = re.compile(
    r"(?s:\n?</?tool_call>.*|\n?<arg_key>[^<>]*(?:<[^<>]*)?(?:>\s*(?:<[^<>]*)?)?)\Z"
    r"|\n?(?:(?:</[^<>]*>\s*)+(?:<[^<>]*)?|<(?:/|parameter |/｜DSML｜ )?[^<>\s]*)?\Z"
)
"""Text that may be the end of a parameter: closing tags, the next key, and an incomplete tag."""
_ENDS = re.compile(
    rf"(?:{_CLOSE}|\A|<tool_sep>)\s*{_END}|(?<![>\s])\n</function>(?=\s*</tool_call>)"
    r"|</[\w.-]+>\s*</invoke>(?=\s*(?:<invoke |</tool_call>))"
)


def _read_json(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`{"name": …, "arguments": {…}}`, in either order (Hermes, Qwen 2.5 and 3, Llama 3, Mistral;
    Command R calls them tool_name and parameters), or `{NAME: {…}}` (Apertus). Without a preceding
    mark of calls, only a tool's name makes it a call."""
    start, end = found.end(), closing_end(text, found.end())
    said = to_json(text[start:end])
    # A name may continue after its quote.
    call = parse_begun(said if end else to_json(OPEN_END.sub("", text[start:])))
    before = set(takewhile(lambda key: key not in _NAMES, call))
    name, only = next((call[key] for key in call if key in _NAMES), None), "".join(call)
    if name is None and end is not None and str(call.get("type")) in tools:  # Granite 4
        name = call["type"]
    if only in tools and isinstance(call.get(only), dict):
        return ([], None) if end is None else ([(only, dump(call[only]))], end)
    expected = before <= _BEFORE_NAME | tools.keys()
    if name is None and end is None and expected:
        return [], None
    marked = found["mark"] not in (None, "```json")
    if not (expected and isinstance(name, str) and (marked or name in tools)):
        raise ValueError(text)
    arguments = arguments_of(said, complete=end is not None)
    if arguments == "{}":  # some write them beside the name
        beside = call.keys() - {*_NAMES, *_BEFORE_NAME}
        arguments = dump({key: value for key, value in call.items() if key in beside})
    return [(name, arguments)], end


def _read_tagged(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
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
    if found["mark"] is None and not body.lstrip().startswith("<"):
        if body.strip():  # text about calls
            raise ValueError(text)
        return [], None
    # Some models quote names, and leave out the first opening tag.
    body = re.sub(r'<parameter="([^<>"]+)">', r"<parameter=\1>", body)
    body = re.sub(r"\A([^<>\s]+</arg_key>)", r"<arg_key>\1", body)
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
        if not re.search(_OPEN, value):
            value = _STRAY.sub("", value)
        raw = _RAW.fullmatch(value) or (_IS_TEXT.match(parameter[0]) and [value, value])
        value = raw[1] if raw else parse_value(value, kinds_of(known.get(parameter[1]), root))
        members.append(f"{dump(parameter[1])}: {dump(value)}")
        at = parameter.end()
    if end is not None and not members:
        body = re.sub(r"\A([^<>]*[^<>\s])</([^<>/\s]+)>", r"<\2>\1</\2>", body)
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


def _read_named(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """A name, then its arguments as JSON, see `formats`."""
    start, end = found.end(), closing_end(text, found.end())
    said = to_json(text[start:end])
    parse_begun(said)
    said = OPEN_END.sub("", said) if end is None else said
    return [(found["name"], said)], end


def _read_server(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """A named call with its MCP server, which clients put before the name (MiroThinker)."""
    ((name, said),), end = _read_named(text, found, tools)
    full = (one for one in tools if found["server"] in one and one.endswith(name))
    return [(name if name in tools else next(full, name), said)], end


def read_quoted(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`call:NAME{x:<escape>…<escape>,y:1}<end_function_call>` (FunctionGemma; Gemma 4 has other
    marks, and in long conversations `call:NAME(x=…)`), sent once it is complete."""
    ends = _QUOTED_ENDS.search(text, found.end())
    if ends is None:
        return [], None
    parts = re.split(r'<escape>|<\|"\|>', text[found.end() : ends.start()].rstrip())
    if parts[0].startswith("("):
        parts[::2] = [_KEYWORD.sub(lambda one: one[1] or f"{one[2]}:", part) for part in parts[::2]]
        parts[0] = parts[0].replace("(", "{", 1)
        parts[-1] = re.sub(r"\)\Z", "}", parts[-1])
    members = "".join(
        dump(part) if number % 2 else quote_words(part) for number, part in enumerate(parts)
    )
    members = members[:-1] if len(parts) % 2 == 0 else members  # within a text
    members += "" if ends["cut"] else missing_end(members)
    parse_begun(members)
    return [(found["name"], members)], ends.end()


def _read_python(text: str, found: re.Match[str], tools: Schemas) -> Parsed:
    """`[NAME(x="…"), …]` (Llama 3.2 and 4) or `NAME(x="…")` (OLMo 3), sent once complete. Without a
    mark, it fills a line."""
    start, end = found.end(), closing_end(text, found.end(), PLAIN_WORDS)
    rest = "" if end is None else (found["mark"] and "\n") or text[end:].lstrip(" \t")
    if end is None or not rest:
        return [], None
    if rest[0] not in "\n;,<":
        raise ValueError(text)
    try:
        return python_calls(text[start:end], tools), end
    except UNREADABLE:
        raise ValueError(text) from None


@lru_cache(maxsize=16)  # takes 10 ms, and agents offer the same tools in each request
def formats(names: tuple[str, ...]) -> list[tuple[re.Pattern[str], Format]]:
    """The header of a call and the function that reads its arguments, by format. `names`: the
    request's functions."""
    known = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"
    marks = sorted((one for one in CALL_MARKS if one != "<function="), key=len, reverse=True)
    one = f"(?:{'|'.join(map(re.escape, marks))})"
    name = rf"(?P<name>{known}|[\w.:-]+)"
    mark = rf"\s*(?P<mark>{one}(?:\s*{one})*)\s*"
    maybe = rf"(?:{mark}|\s*)"
    table: tuple[tuple[str, Format], ...] = (
        (rf"\s*{FUNCTIONARY}all\n", lambda text, found, tools: ([], found.end())),  # before text
        (
            rf'{maybe}(?:{{\s*"tool_calls?"\s*:\s*)?(?:\[\s*)?'
            rf'(?:{{[^{{}}]{{,200}}"function"\s*:\s*|{{(?={{))?(?={{)',  # some double the brackets
            _read_json,
        ),
        (  # Llama 3.1, Kimi K3
            rf'{maybe}<(?:function=|call tool="(?=[^>]*><json))(?P<name>{known}|[^">\s{{]+)'
            r"(?:[^>]*><json[^>{]*)?>?\s*(?={)",
            _read_named,
        ),
        (
            rf"{maybe}(?:function<｜tool_sep｜>)?"
            rf'<(?:function(?:="?| name=")|{_SPACE}invoke name="|call tool=")'
            rf'(?P<name>{known}|[^>"\s]+)(?:"[^>]*)?>',
            _read_tagged,
        ),
        (
            rf"{mark}(?<=tool_call>)\s*{name}\s*"
            rf"(?=<tool_sep>|<{_SPACE}arg_key>|[^<>\s]+</arg_key>|</{_SPACE}tool_call>)",
            _read_tagged,
        ),
        (rf"{maybe}(?=(?:\[\s*)?(?:{known})(?:\.call)?\(|\[\s*[^\W\d][\w.]*\()", _read_python),
        (
            # DeepSeek, R1 (with a type before the name and a fence after it), Kimi K2, Solar,
            # PLaMo 3.
            rf"{mark}(?:function<｜tool▁sep｜>|functions[._]?(?={known})|functions\.|"
            rf"\w*<\|tool_call:name\|>|<\|plamo:begin_tool_name:plamo\|>)?"
            rf"(?P<name>(?P<known>{known})|[\w.-]+?)"
            r"(?(known)[:_]?\d*|(?::\d+)?)\s*(?:<｜tool▁sep｜>|\n```json\n|"
            r"<\|tool_call_argument_begin\|>|<\|tool_call:args\|>|"
            r"<\|plamo:end_tool_name:plamo\|>\s*<\|plamo:begin_tool_arguments:plamo\|>"
            r"(?:<\|plamo:constrain\|>json)?(?:<\|plamo:msg\|>)?)\s*(?={)",
            _read_named,
        ),
        (
            rf"{mark}(?<=use_mcp_tool>)\s*<server_name>(?P<server>[^<]*)</server_name>"
            rf"\s*<tool_name>\s*{name}\s*</tool_name>\s*<arguments>\s*(?={{)",
            _read_server,
        ),
        (rf"{mark}call:{name}(?=[{{(])", read_quoted),
        # Mistral, whose marks are control tokens and leave no text; functionary.
        (
            rf"{mark}(?:function<｜tool▁sep｜>)?(?P<name>{known})"
            rf"(?:(?:\[CALL_ID\])?\w{{9}})?(?:\[ARGS\])?\s*(?={{)",
            _read_named,
        ),
    )
    return [(re.compile(pattern), read) for pattern, read in table]


def ends_of(read: Format | None, held: str) -> tuple[str, ...]:
    """What may complete a call in which an answer ended."""
    whole = in_string(held) or held.rstrip().endswith(",")
    cuts: dict[Format | None, str] = {read_quoted: _CUT, _read_tagged: _CUT}  # cut values count
    cuts[_read_json] = "" if whole else ","
    return "</tool_call>", cuts.get(read, "")  # models forget to close calls
