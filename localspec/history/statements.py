"""The history's SQL, its full-text index, and the processes that write answers."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from localspec.chat.conversation import BY_TEXT, INTERRUPTED, STREAMING, Conversation, Message
from localspec.history.rows import (
    HEADER,
    MESSAGE,
    conversation_from,
    header_row,
    message_from,
    message_row,
    record_of,
    storable,
)
from localspec.history.schema import transaction

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
_PER_CONVERSATION = 5
"""Maximum hits per conversation: more would crowd out the others."""
_MAX_CANDIDATES = 5000
"""Maximum number of matching messages considered, newest first."""
_SNIPPET_WORDS = 24
_TOLERANCE = 1.0
"""Seconds by which two readings of one start time may differ: clocks are adjusted."""

_HEADER = ", ".join(HEADER)
_MESSAGE = ", ".join(MESSAGE)
_WRITTEN = (*MESSAGE, "writer")
_PUT_HEADER = (
    f"INSERT INTO conversations ({_HEADER}) VALUES ({', '.join('?' * len(HEADER))}) "
    "ON CONFLICT (id) DO UPDATE SET updated = max(updated, excluded.updated), "
    # A title from the first message never replaces one: another chat may have set a better one.
    + ", ".join(
        f"{name} = CASE excluded.titled_by WHEN '{BY_TEXT}' THEN {name} ELSE excluded.{name} END"
        if name.startswith("title")
        else f"{name} = excluded.{name}"
        for name in HEADER
        if name not in ("id", "updated")
    )
)
_PUT_MESSAGE = (
    f"INSERT INTO messages ({_MESSAGE}, writer) VALUES ({', '.join('?' * len(_WRITTEN))}) "
    f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in _WRITTEN)}"
)


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A conversation in a list; `messages` counts all branches."""

    id: str
    title: str
    updated: float
    messages: int
    model: str | None


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


class Statements:
    """Statements on one connection, for one thread at a time. Methods raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def wait(self, seconds: float) -> None:
        self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")

    def put(self, conversation: Conversation, messages: Sequence[Message]) -> None:
        """Write all of it or nothing; arguments as for `History.put`."""
        run, of = self.connection.execute, "FROM conversations WHERE id = ?"
        with transaction(self.connection):
            before = run(f"SELECT title {of}", (conversation.id,)).fetchone()
            run(_PUT_HEADER, header_row(conversation))
            seq, title = run(f"SELECT seq, title {of}", (conversation.id,)).fetchone()
            if before != (title,):
                self._index("titles", seq, title)
            if before is None:
                messages = list(conversation.messages.values())
            for message in messages:
                self._put_message(message, conversation.id)

    def delete(self, ids: Sequence[str]) -> int:
        """Remove conversations; returns how many there were."""
        run = self.connection.execute
        removed = 0
        with transaction(self.connection):
            for id in ids:
                for of, index in (
                    ("messages WHERE conversation", "words"),
                    ("conversations WHERE id", "titles"),
                ):
                    run(f"DELETE FROM {index} WHERE rowid IN (SELECT seq FROM {of} = ?)", (id,))
                    last = run(f"DELETE FROM {of} = ?", (id,))
                removed += last.rowcount
        # FTS5 only marks rows as deleted until its index is merged (a second for 80,000 messages).
        # If the file is locked, the next deletion merges it.
        with suppress(sqlite3.Error):
            for table in ("titles", "words"):
                run(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
            run("PRAGMA incremental_vacuum").fetchall()
        return removed

    def mark_interrupted(self) -> None:
        """Mark answers whose writer is gone as INTERRUPTED, and index them."""
        for conversation, message in [*self._messages(f"state = '{STREAMING}'")]:
            if message.state == INTERRUPTED:
                with transaction(self.connection):
                    self._put_message(message, conversation)

    def load(self, id: str) -> Conversation | None:
        """Load a conversation; answers whose writer is gone become INTERRUPTED."""
        header = self.connection.execute(
            f"SELECT {_HEADER} FROM conversations WHERE id = ?", (id,)
        ).fetchone()
        if header is None:
            return None
        return conversation_from(header, [m for _, m in self._messages("conversation = ?", id)])

    def rows(self, query: str, *values: object) -> list[Any]:
        return self.connection.execute(query, values).fetchall()

    def search(self, expression: str, limit: int) -> list[SearchHit]:
        """Matching titles, then messages, newest first; see `expression`."""
        found = self._search_titles(expression, limit)
        return found + self._search_messages(expression, limit - len(found))

    def _search_titles(self, expression: str, limit: int) -> list[SearchHit]:
        rows = self.connection.execute(
            # In index order: sorting would require reading all matches.
            "SELECT c.id, c.title, NULL, NULL, snippet(titles, 0, ?, ?, '…', ?), c.updated "
            "FROM titles CROSS JOIN conversations AS c ON c.seq = titles.rowid "
            # A title made from the first message is found in that message.
            "WHERE titles MATCH ? AND c.titled_by <> ? ORDER BY titles.rowid DESC LIMIT ?",
            (MARK, END, _SNIPPET_WORDS, expression, BY_TEXT, limit),
        )
        return [_hit(row) for row in rows]

    def _search_messages(self, expression: str, limit: int) -> list[SearchHit]:
        # Snippets are the most expensive part, so they are made for chosen rows only. The unary
        # plus keeps SQLite from looking up each row in the whole index.
        rows = self.connection.execute(
            "WITH found AS (SELECT m.seq, m.conversation "
            "FROM words CROSS JOIN messages AS m ON m.seq = words.rowid "
            "WHERE words MATCH ?1 ORDER BY words.rowid DESC LIMIT ?2), "
            "numbered AS (SELECT seq, "
            "row_number() OVER (PARTITION BY conversation ORDER BY seq DESC) AS place FROM found), "
            "chosen AS (SELECT seq FROM numbered WHERE place <= ?3 ORDER BY seq DESC LIMIT ?4) "
            "SELECT c.id, c.title, m.id, m.role, snippet(words, 0, ?5, ?6, '…', ?7), c.updated "
            "FROM words CROSS JOIN messages AS m ON m.seq = words.rowid "
            "JOIN conversations AS c ON c.id = m.conversation "
            "WHERE words MATCH ?1 AND words.rowid >= (SELECT min(seq) FROM chosen) "
            "AND +words.rowid IN chosen ORDER BY words.rowid DESC",
            (expression, _MAX_CANDIDATES, _PER_CONVERSATION, limit, MARK, END, _SNIPPET_WORDS),
        )
        return [_hit(row) for row in rows]

    def _messages(self, condition: str, *values: str) -> Iterator[tuple[str, Message]]:
        """Ids of conversations and their messages; answers whose writer is gone are INTERRUPTED."""
        # The state must be a literal: with a parameter, SQLite would not use its index.
        found = f"SELECT writer, {_MESSAGE} FROM messages WHERE {condition} ORDER BY seq"
        for writer, *row in self.connection.execute(found, values):
            message = message_from(row)
            if message.state == STREAMING and not is_alive(writer):
                message.state = INTERRUPTED
            yield row[MESSAGE.index("conversation")], message

    def _put_message(self, message: Message, conversation: str) -> None:
        run = self.connection.execute
        streams = message.state == STREAMING
        writer = this_process() if streams else None
        run(_PUT_MESSAGE, (*message_row(message, conversation), writer))
        (seq,) = run("SELECT seq FROM messages WHERE id = ?", (message.id,)).fetchone()
        if streams:
            run("DELETE FROM words WHERE rowid = ?", (seq,))
        else:
            names = [attachment.name for attachment in message.attachments]
            self._index("words", seq, storable("\n".join([message.content, *names])))

    def _index(self, table: str, seq: int, text: str) -> None:
        self.connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (seq,))
        words = segment(text.replace(MARK, " ").replace(END, " "))
        self.connection.execute(f"INSERT INTO {table} (rowid, text) VALUES (?, ?)", (seq, words))


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


def _hit(row: Sequence[Any]) -> SearchHit:
    *found, snippet, updated = row
    hit: SearchHit = record_of(SearchHit, (*found, _clean_snippet(snippet), updated))
    return hit


def this_process() -> str:
    """This process's PID and start time."""
    return f"{os.getpid()}@{psutil.Process().create_time():.2f}"


def is_alive(writer: str | None) -> bool:
    if writer == this_process():
        return True
    try:
        number, start = (writer or "").split("@")
        process = psutil.Process(int(number))
        # A killed process keeps its PID until its parent waits for it.
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - float(start)) <= _TOLERANCE
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False
