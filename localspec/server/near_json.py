"""Values as models write them: near-JSON (incomplete, in single quotes, with Python's literals,
invalid escapes or trailing commas), and unquoted or in tags."""

import ast
import json
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from pydantic_core import from_json

from localspec.grammars.schema_parts import resolve_reference

_COMMENT = r"//[^\n]*(?=\n|\Z)|/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)"
PLAIN_WORDS, _WORDS = (
    re.compile(
        r"""("{3}|'{3})(?:[^\\]|\\.)*?(?:\1|\Z)"""
        rf"""|(["'])((?:(?!\2)[^\\]|\\.|\\\Z|{inner})*)(\2?)"""
        r"|[][(){}]|-?\b[TFNItfn]\w*|-\Z"
        rf"|{_COMMENT}|/\Z|,(?:\s|{_COMMENT})*(?=[]}}]|/?\Z)",
        re.DOTALL,
    )
    for inner in ("(?!)", r"\2(?!\s*(?:[]}:,]|\Z))")
)
"""Strings, brackets, trailing commas, comments, literals of JSON and Python, and a minus that may
begin one. The second also accepts unescaped quotes within strings, as models write code in JSON."""
_PARTS = re.compile(r'"(?:[^"\\]|\\.)*("?)|[][{}]', re.DOTALL)
OPEN_END = re.compile(r"(?<![\"'])[\"'][\"'\s]*\Z")
"""Quotes at the end that may still be within the string."""
_ARGUMENTS = re.compile(r'"(?:arguments|parameters|args|input|params)"\s*:\s*(?=\S)')
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_OF_PYTHON = {other: one for one, other in _LITERALS.items()}
_LITERALS |= dict.fromkeys(("NaN", "Infinity", "-Infinity"), "null")
_ESCAPES = re.compile(
    r"""(?s)(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\(u[0-9a-fA-F]{0,3})?\Z"""
    r"""|(?:\\|(?=[\0-\x1f"]))(.)"""
)
"""In a string: a valid escape, an incomplete one, and characters to escape or unescape."""
_BARE = re.compile(
    r""""(?:[^"\\]|\\.)*"?|((?<=:)\s*)?([^\s{}[\],:"](?(1)[^{}[\],"]|[^{}[\],:"])*)"""
    r"""(?=([:,\]}]?))"""
)
"""A quoted text, or a word; one after a colon is a value, which may have colons."""
CHILD = re.compile(r"<([^<>/\s]+)>(.*?)</\1>", re.DOTALL)
UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "object": dict}
_TYPES |= {"array": list, "null": type(None)}
_HIGH, _LOW = (rf"\\u[dD][{digits}][0-9a-fA-F]{{2}}" for digits in ("89abAB", "c-fC-F"))
_SURROGATE = re.compile(
    rf"{_HIGH}(?!{_LOW}|(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z)|(?<!{_HIGH}){_LOW}"  # a lone one
)


def dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def _value_end(text: str, start: int) -> int | None:
    """The end of the JSON value that begins at `start`; None if it is incomplete or too deep."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return None


def closing_end(text: str, start: int, words: re.Pattern[str] = _WORDS) -> int | None:
    """The position after the bracket that closes the one at `start`; None if there is none."""
    depth = 0
    for word in words.finditer(text, start):
        depth += (word[0] in "([{") - (word[0] in ")]}")
        if depth == 0 and word[0] in ")]}":
            return word.end()
    return None


def missing_end(text: str) -> str:
    """The quote and brackets that a JSON object lacks; "" if none, or if they do not suffice."""
    closing, quote = "", ""
    for word in _PARTS.finditer(text):
        if word[0] in "{[":
            closing = ("}" if word[0] == "{" else "]") + closing
        elif word[0] in "}]":
            closing = closing[1:]
        quote = '"' if word[1] == "" else ""
    found = quote + closing
    return found if _value_end(text + found, 0) else ""


def _escape(closed: str, part: re.Match[str]) -> str:
    valid, begun, other = part.groups(default="")
    if valid or not (closed or other):
        return valid
    slash = "\\\\" if part[0][0] == "\\" and other != "'" else ""
    return slash + begun + json.dumps(other, ensure_ascii=False)[1:-1]


def to_json(text: str) -> str:
    """Convert near-JSON to JSON: single quotes, Python's literals, raw line ends, invalid escapes,
    trailing commas, comments, and numbers that JSON lacks. The text may be incomplete."""

    def word(found: re.Match[str]) -> str:
        said = found[0]
        if said[0] in ",/" or said == "-":
            return ""
        if found[2]:
            return f'"{_ESCAPES.sub(partial(_escape, found[4]), found[3])}' + '"' * len(found[4])
        if said in _LITERALS:
            return _LITERALS[said]
        begun = (_LITERALS[one][: len(said)] for one in _LITERALS if one.startswith(said))
        return next(begun, said)

    return _WORDS.sub(word, text)


def in_string(text: str) -> bool:
    """Whether near-JSON ends within a string."""
    parts = [*_PARTS.finditer(to_json(text))]
    return bool(parts) and parts[-1][1] == ""


def parse_partial(text: str, mode: Literal[True, False, "trailing-strings"]) -> Any:
    """Parse a JSON value, incomplete ones according to `mode`. A lone surrogate becomes U+FFFD.
    Raises ValueError."""
    try:
        return from_json(text, allow_partial=mode)
    except ValueError:
        return from_json(_SURROGATE.sub(r"\\ufffd", text), allow_partial=mode)


def parse_begun(text: str) -> Any:
    """Parse a JSON value that may be incomplete. Raises ValueError, also for a missing comma or
    colon, after which `parse_partial` ignores the rest."""
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        if error.msg.endswith("delimiter") and text[error.pos :].strip(".eE+-"):  # no number
            raise
    return parse_partial(text, True)


def arguments_of(call: str, *, complete: bool) -> str:
    """Extract the arguments of a call: those in a string once complete, {} if there are none."""
    match = _ARGUMENTS.search(call)
    if match is None:
        return "{}" if complete else ""
    start, end = match.end(), _value_end(call, match.end())
    if call[start] not in '"n':  # "n" of null
        return call[start:end] if complete else OPEN_END.sub("", call[start:end])
    if end is None or not (complete or call[end:].strip()):
        return ""
    return str(json.loads(call[start:end]) or "{}").encode("utf-8", "replace").decode()


def kinds_of(schema: Any, root: Mapping[str, Any]) -> set[type]:
    """Types that a schema allows for a value; empty if any type is allowed."""
    found, pending = set[type](), [schema]
    for one in pending:  # grows
        match resolve_reference(one, root):
            case {"anyOf": [*parts]} | {"oneOf": [*parts]} | {"allOf": [*parts]}:
                pending += [part for part in parts if part not in pending]
            case {"enum": [*values]}:
                found |= {*map(type, values)}
            case {"const": value}:
                found.add(type(value))
            case {"type": str() | list() as named} if any(name in named for name in _TYPES):
                found |= {kind for name, kind in _TYPES.items() if name in named}
            case _:
                return set()
    return found


def parse_value(text: str, kinds: set[type]) -> Any:
    """Parse an unquoted value as one of the allowed types."""
    plain = partial(from_json, allow_inf_nan=False)
    for parse in (plain, ast.literal_eval, lambda said: plain(json.loads(f'"{said}"'))):
        with suppress(*UNREADABLE):
            value = json.loads(dump(parse(text.strip())))
            allowed = kinds - {str} | ({int} if float in kinds else set())
            return value if str not in kinds or type(value) in allowed else text
    return text


def parse_nested(value: str, kinds: set[type]) -> Any:
    """Parse a value of MiniMax M3, in which items and members are nested tags."""
    inner = CHILD.findall(value) if not kinds or kinds & {dict, list} else ()
    if not inner:
        return parse_value(value, kinds)
    found = [(key, parse_nested(one, set())) for key, one in inner]
    listed = not kinds & {dict} and {*dict(found)} == {"item"}
    return [one for _, one in found] if listed else dict(found)


def quote_words(text: str) -> str:
    """Convert unquoted words in near-JSON to JSON."""

    def quoted(found: re.Match[str]) -> str:
        said = (found[2] or "").rstrip()
        if not (said and found[3]):
            return found[0]
        with suppress(ValueError):
            if found[3] != ":":
                json.loads(to_json(said))
                return to_json(said)
        return dump(said) + found[2][len(said) :]

    return _BARE.sub(quoted, text)


def python_calls(text: str, names: Iterable[str]) -> list[tuple[str, str]]:
    """Names and arguments (as JSON) of one call in Python, or of a list of calls. The literals may
    be JSON's, strings may contain raw line feeds, and `names` need not be Python's. Raises one of
    UNREADABLE."""
    other = [name for name in names if not name.isidentifier()]
    marks = [(f"_tool{number}_(", f"{name}(") for number, name in enumerate(other)]
    for mark, spelled in marks:
        text = text.replace(spelled, mark)

    def plain(word: re.Match[str]) -> str:
        in_line = word[2] and not word[1]
        return word[0].replace("\n", "\\n") if in_line else _OF_PYTHON.get(word[0], word[0])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        body = ast.parse(PLAIN_WORDS.sub(plain, text), mode="eval").body
    found = []
    for call in getattr(body, "elts", [body]):
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError(text)
        arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        name, said = f"{ast.unparse(call.func).removesuffix('.call')}(", dump(arguments)
        for mark, spelled in marks:
            name, said = name.replace(mark, spelled), said.replace(mark, spelled)
        found.append((name[:-1], said))
    return found
