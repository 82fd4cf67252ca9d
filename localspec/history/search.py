"""The full-text index, and searching it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from localspec.chat.conversation import Message
from localspec.history import query
from localspec.history.rows import storable

INDEX = ("titles", "words")

PER_CONVERSATION = 5
"""Hits of one conversation: more would hide all others."""
LOOKED_AT = 5000
"""Matching messages that are considered, newest first."""
SNIPPET = 24
"""Words."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A hit.

    Attributes:
        message: id of the message with this `role`; None for a hit in the title.
        snippet: one line around the hit; see `parts`.
        updated: of the conversation.
    """

    conversation: str
    title: str
    message: str | None
    role: str | None
    snippet: str
    updated: float

    @property
    def parts(self) -> list[tuple[str, bool]]:
        return query.parts(self.snippet)


def search(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    """Matching titles, then messages, newest first; see `query.expression`."""
    found = _titles(connection, expression, limit)
    return found + _messages(connection, expression, limit - len(found))


def index(connection: sqlite3.Connection, table: str, seq: int, text: str) -> None:
    connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (seq,))
    connection.execute(
        f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, query.indexed(text))
    )


def words(message: Message) -> str:
    """What a message is found by: text and file names."""
    names = [attachment.name for attachment in message.attachments]
    return storable("\n".join([message.content, *names]))


def _titles(connection: sqlite3.Connection, expression: str, limit: int) -> list[SearchHit]:
    rows = connection.execute(
        # In the order that the index has: to sort all that match would take reading them.
        "SELECT c.id, c.title, NULL, NULL, snippet(titles, 0, ?, ?, '…', ?), c.updated "
        "FROM titles CROSS JOIN conversations AS c ON c.seq = titles.rowid "
        "WHERE titles MATCH ? ORDER BY titles.rowid DESC LIMIT ?",
        (query.MARK, query.END, SNIPPET, expression, limit),
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
        (query.MARK, query.END, SNIPPET, expression, chosen[-1], *chosen, len(chosen)),
    )
    return [_hit(row) for row in rows]


def _hit(row: Sequence[Any]) -> SearchHit:
    conversation, title, message, role, snippet, updated = row
    return SearchHit(conversation, title, message, role, query.readable(snippet), updated)
