"""Search words as an FTS5 expression, and text as it is indexed."""

from __future__ import annotations

import re

MARK, END = "\x02", "\x03"
"""Around hits in a snippet; no text on a screen has these characters."""

LONGEST = 1000
"""Characters of a query that are used."""

# Han, Hiragana and Katakana are written without spaces.
_IDEOGRAPH = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_IDEOGRAPHS = re.compile(_IDEOGRAPH)
_SPACED = re.compile(f" ?({MARK}?)({_IDEOGRAPH})({END}?) ?")
_PART = re.compile(r'"([^"]*)("|$)|([^\s"]+)')
_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


def expression(query: str) -> str | None:
    """An FTS5 expression for words and "phrases" that all occur; None without any.

    The last word may be incomplete, as people search while they type.
    """
    # Only strings in quotes are passed on, so nothing can be taken for FTS5's own syntax.
    text = query.translate(_CONTROL)[:LONGEST]
    parts = [
        (segmented(match[1] if match[3] is None else match[3]), match[2] == '"')
        for match in _PART.finditer(text)
    ]
    parts = [(words, closed) for words, closed in parts if any(c.isalnum() for c in words)]
    if not parts:
        return None
    found = [f'"{words}"' for words, _ in parts]
    if not parts[-1][1]:
        found[-1] += " *"
    return " AND ".join(found)


def segmented(text: str) -> str:
    """Blanks around every ideograph: each is a word of the index."""
    return text if text.isascii() else _IDEOGRAPHS.sub(r" \g<0> ", text)


def indexed(text: str) -> str:
    return segmented(text.replace(MARK, " ").replace(END, " "))


def readable(snippet: str) -> str:
    """A snippet in one line without those blanks and control characters; its marks stay."""
    if not snippet.isascii():
        snippet = _SPACED.sub(r"\1\2\3", snippet)
    keep = {ord(MARK): MARK, ord(END): END}
    return " ".join(snippet.translate({**_CONTROL, **keep}).split())


def parts(snippet: str) -> list[tuple[str, bool]]:
    """A snippet in pieces: text, and whether it is a hit."""
    found: list[tuple[str, bool]] = []
    for i, piece in enumerate(snippet.split(MARK)):
        marked, _, rest = piece.partition(END) if i else ("", "", piece)
        found += [(text, hit) for text, hit in ((marked, True), (rest, False)) if text]
    return found
