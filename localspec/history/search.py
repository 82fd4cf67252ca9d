"""The full-text index: search words as FTS5 expressions, text as it is indexed, hits."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.conversation import BY_TEXT, Message
from localspec.history.rows import storable

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
    """An FTS5 expression for words and "phrases" that all occur, None without any. The last word
    may be incomplete, as people search while they type."""
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


INDEX = ("titles", "words")

PER_CONVERSATION = 5
"""Hits of one conversation: more would hide all others."""
LOOKED_AT = 5000
"""Matching messages that are considered, newest first."""
SNIPPET = 24
"""Words."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A hit in the `message` of that id and `role`, None for one in the title. `snippet`: one line
    around it; `updated`: of the conversation."""

    conversation: str
    title: str
    message: str | None
    role: str | None
    snippet: str
    updated: float

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The snippet in pieces: text, and whether it is a hit."""
        found: list[tuple[str, bool]] = []
        for i, piece in enumerate(self.snippet.split(MARK)):
            marked, _, rest = piece.partition(END) if i else ("", "", piece)
            found += [(text, hit) for text, hit in ((marked, True), (rest, False)) if text]
        return found


def search(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    """Matching titles, then messages, newest first; see `expression`."""
    found = _titles(connection, expression, limit)
    return found + _messages(connection, expression, limit - len(found))


def index(connection: sqlite3.Connection, table: str, seq: int, text: str) -> None:
    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (seq,))
    connection.execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, indexed(text)))


def words(message: Message) -> str:
    """What a message is found by: text and file names."""
    names = [attachment.name for attachment in message.attachments]
    return storable("\n".join([message.content, *names]))


def _titles(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    rows = connection.execute(
        # In the order that the index has: to sort all that match would take reading them.
        "SELECT c.id, c.title, NULL, NULL, snippet(titles, 0, ?, ?, '…', ?), c.updated "
        "FROM titles CROSS JOIN conversations AS c ON c.seq = titles.rowid "
        # A title from the first message's words is found there.
        "WHERE titles MATCH ? AND c.titled_by <> ? ORDER BY titles.rowid DESC LIMIT ?",
        (MARK, END, SNIPPET, expression, BY_TEXT, limit),
    )
    return [_hit(row) for row in rows]


def _messages(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    chosen: list[int] = []
    taken: dict[str, int] = {}
    for seq, conversation in connection.execute(
        "SELECT m.seq, m.conversation "
        "FROM words CROSS JOIN messages AS m ON m.seq = words.rowid "
        "WHERE words MATCH ? ORDER BY words.rowid DESC LIMIT ?",
        (expression, LOOKED_AT),
    ):
        if len(chosen) >= limit:
            break
        taken[conversation] = taken.get(conversation, 0) + 1
        if taken[conversation] <= PER_CONVERSATION:
            chosen.append(seq)
    if not chosen:
        return []
    # A snippet costs more than all the rest: only for what is chosen. The unary plus keeps SQLite
    # from looking each of them up in the whole index.
    marks = ", ".join("?" * len(chosen))
    rows = connection.execute(
        "SELECT c.id, c.title, m.id, m.role, snippet(words, 0, ?, ?, '…', ?), c.updated "
        "FROM words CROSS JOIN messages AS m ON m.seq = words.rowid "
        "JOIN conversations AS c ON c.id = m.conversation "
        f"WHERE words MATCH ? AND words.rowid >= ? AND +words.rowid IN ({marks}) "
        "ORDER BY words.rowid DESC LIMIT ?",
        (MARK, END, SNIPPET, expression, chosen[-1], *chosen, len(chosen)),
    )
    return [_hit(row) for row in rows]


def _hit(row: Sequence[Any]) -> SearchHit:
    conversation, title, message, role, snippet, updated = row
    return SearchHit(conversation, title, message, role, readable(snippet), updated)
