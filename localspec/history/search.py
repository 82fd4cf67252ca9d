"""The full-text index: queries as FTS5 expressions, preparation of text, and search."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.conversation import BY_TEXT, Message
from localspec.history.rows import plain_record, storable

MARK, END = "\x02", "\x03"
"""Delimiters of hits in a snippet: characters that displayed text never has."""

MAX_QUERY = 1000
"""Maximum characters of a query; the rest is ignored."""

# Han, Hiragana and Katakana are written without spaces.
_IDEOGRAPH = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
_IDEOGRAPHS = re.compile(_IDEOGRAPH)
_SPACED = re.compile(f" ?({MARK}?)({_IDEOGRAPH})({END}?) ?")
_PART = re.compile(r'"([^"]*)("|$)|([^\s"]+)')
_CONTROL = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


def expression(query: str) -> str | None:
    """An FTS5 expression that requires all words and "phrases"; None if there are none. The last
    word may be incomplete, as users search while typing."""
    # Everything is quoted, so that nothing is parsed as FTS5 syntax.
    text = storable(query.translate(_CONTROL)[:MAX_QUERY])
    parts = [
        (segment(match[1] if match[3] is None else match[3]), match[2] == '"')
        for match in _PART.finditer(text)
    ]
    parts = [(words, closed) for words, closed in parts if any(c.isalnum() for c in words)]
    if not parts:
        return None
    found = [f'"{words}"' for words, _ in parts]
    if not parts[-1][1]:
        found[-1] += " *"
    return " AND ".join(found)


def segment(text: str) -> str:
    """Put blanks around every ideograph, so that each is a word of the index."""
    return text if text.isascii() else _IDEOGRAPHS.sub(r" \g<0> ", text)


def _clean_snippet(snippet: str) -> str:
    """Remove the blanks of `segment`, line breaks and control characters; keep MARK and END."""
    snippet = _SPACED.sub(r"\1\2\3", snippet)
    keep = {ord(MARK): MARK, ord(END): END}
    return " ".join(snippet.translate({**_CONTROL, **keep}).split())


INDEX = ("titles", "words")

_PER_CONVERSATION = 5
"""Maximum hits per conversation: more would crowd out the others."""
_MAX_CANDIDATES = 5000
"""Maximum number of matching messages considered, newest first."""
_SNIPPET_WORDS = 24
"""Words."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A search hit. `message`, `role`: id and role of the message; None for a hit in the title;
    `snippet`: one line around it; `updated`: of the conversation."""

    conversation: str
    title: str
    message: str | None
    role: str | None
    snippet: str
    updated: float

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The snippet split into (text, whether it is a hit)."""
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
    words = segment(text.replace(MARK, " ").replace(END, " "))
    connection.execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, words))


def searchable_text(message: Message) -> str:
    """The text to index of a message: content and file names."""
    names = [attachment.name for attachment in message.attachments]
    return storable("\n".join([message.content, *names]))


def _titles(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    rows = connection.execute(
        # In index order: sorting would require reading all matches.
        "SELECT c.id, c.title, NULL, NULL, snippet(titles, 0, ?, ?, '…', ?), c.updated "
        "FROM titles CROSS JOIN conversations AS c ON c.seq = titles.rowid "
        # A title made from the first message is found in that message.
        "WHERE titles MATCH ? AND c.titled_by <> ? ORDER BY titles.rowid DESC LIMIT ?",
        (MARK, END, _SNIPPET_WORDS, expression, BY_TEXT, limit),
    )
    return [_hit(row) for row in rows]


def _messages(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    chosen: list[int] = []
    taken: dict[str, int] = {}
    for seq, conversation in connection.execute(
        "SELECT m.seq, m.conversation "
        "FROM words CROSS JOIN messages AS m ON m.seq = words.rowid "
        "WHERE words MATCH ? ORDER BY words.rowid DESC LIMIT ?",
        (expression, _MAX_CANDIDATES),
    ):
        if len(chosen) >= limit:
            break
        taken[conversation] = taken.get(conversation, 0) + 1
        if taken[conversation] <= _PER_CONVERSATION:
            chosen.append(seq)
    if not chosen:
        return []
    # Snippets are the most expensive part, so they are made for chosen rows only. The unary plus
    # keeps SQLite from looking up each row in the whole index.
    marks = ", ".join("?" * len(chosen))
    rows = connection.execute(
        "SELECT c.id, c.title, m.id, m.role, snippet(words, 0, ?, ?, '…', ?), c.updated "
        "FROM words CROSS JOIN messages AS m ON m.seq = words.rowid "
        "JOIN conversations AS c ON c.id = m.conversation "
        f"WHERE words MATCH ? AND words.rowid >= ? AND +words.rowid IN ({marks}) "
        "ORDER BY words.rowid DESC LIMIT ?",
        (MARK, END, _SNIPPET_WORDS, expression, chosen[-1], *chosen, len(chosen)),
    )
    return [_hit(row) for row in rows]


def _hit(row: Sequence[Any]) -> SearchHit:
    *found, snippet, updated = row
    hit: SearchHit = plain_record(SearchHit, (*found, _clean_snippet(snippet), updated))
    return hit
