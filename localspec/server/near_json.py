"""Near-JSON, as models write it: incomplete, in single quotes, with Python's literals, and with
invalid escapes or trailing commas."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Literal

from pydantic_core import from_json

PLAIN_WORDS, _WORDS = (
    re.compile(
        r"""("{3}|'{3})(?:[^\\]|\\.)*?(?:\1|\Z)"""
        rf"""|(["'])((?:(?!\2)[^\\]|\\.|\\\Z|{inner})*)(\2?)"""
        r"|[][(){}]|\b[TFNtfn]\w*|,\s*(?=[]}]|\Z)",
        re.DOTALL,
    )
    for inner in ("(?!)", r"\2(?!\s*(?:[]}:,]|\Z))")
)
"""Strings, brackets, trailing commas, and literals of JSON and Python. The second also accepts
unescaped quotes within strings, as models write code in JSON."""
OPEN_END = re.compile(r"[\"']\s*\Z")
"""A quote at the end that may still be within the string."""
LITERALS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = re.compile(
    r"""(?s)(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\(u[0-9a-fA-F]{0,3})?\Z"""
    r"""|(?:\\|(?=[\0-\x1f"]))(.)"""
)
"""In a string: a valid escape, an incomplete one, and characters to escape or unescape."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def value_end(text: str, start: int) -> int | None:
    """The end of the JSON value that begins at `start`; None if it is incomplete."""
    try:
        return json.JSONDecoder(strict=False).raw_decode(text, start)[1]
    except ValueError:
        return None


def closing_end(text: str, start: int, words: re.Pattern[str] = _WORDS) -> int | None:
    """The position after the bracket that closes the one at `start`; None if there is none."""
    depth = 0
    for word in words.finditer(text, start):
        depth += (word[0] in "([{") - (word[0] in ")]}")
        if depth == 0 and word[0] in ")]}":
            return word.end()
    return None


def _escape(closed: str, part: re.Match[str]) -> str:
    valid, begun, other = part.groups(default="")
    if valid or not (closed or other):
        return valid
    slash = "\\\\" if part[0][0] == "\\" and other != "'" else ""
    return slash + begun + json.dumps(other, ensure_ascii=False)[1:-1]


def to_json(text: str) -> str:
    """Convert near-JSON to JSON: single quotes, Python's literals, raw line ends, invalid escapes
    and trailing commas. The text may be incomplete."""

    def word(found: re.Match[str]) -> str:
        said = found[0]
        if said[0] == ",":
            return ""
        if found[2]:
            return f'"{_ESCAPES.sub(partial(_escape, found[4]), found[3])}' + '"' * len(found[4])
        return next((LITERALS[one][: len(said)] for one in LITERALS if one.startswith(said)), said)

    return _WORDS.sub(word, text)


def parse_partial(text: str, mode: Literal[True, False, "trailing-strings"]) -> Any:
    """Parse a JSON value, incomplete ones according to `mode`. A lone surrogate becomes U+FFFD.
    Raises ValueError."""
    try:
        return from_json(text, allow_partial=mode)
    except ValueError:
        return from_json(_SURROGATE.sub(r"\\ufffd", text), allow_partial=mode)
