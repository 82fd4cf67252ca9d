"""The history's SQL statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from localspec.chat.conversation import BY_TEXT, INTERRUPTED, STREAMING, Conversation, Message
from localspec.history import process, search
from localspec.history.rows import (
    HEADER,
    MESSAGE,
    conversation_from,
    header_row,
    message_from,
    message_row,
    plain_record,
)
from localspec.history.schema import transaction

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
_SUMMARY = (
    "SELECT id, title, updated, "
    "(SELECT count(*) FROM messages AS m WHERE m.conversation = c.id), model "
    "FROM conversations AS c ORDER BY updated DESC, seq DESC LIMIT ? OFFSET ?"
)


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A conversation in a list; `messages` counts all branches."""

    id: str
    title: str
    updated: float
    messages: int
    model: str | None


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
                search.index(self.connection, "titles", seq, title)
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
            for table in search.INDEX:
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

    def count(self) -> int:
        (count,) = self.connection.execute("SELECT count(*) FROM conversations").fetchone()
        return int(count)

    def summaries(self, limit: int, offset: int) -> list[ConversationSummary]:
        rows = self.connection.execute(_SUMMARY, (limit, offset))
        return [plain_record(ConversationSummary, row) for row in rows]

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        rows = self.connection.execute(
            "SELECT id FROM conversations WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (prefix, prefix + "\U0010ffff", limit),
        )
        return [id for (id,) in rows]

    def recent_prompts(self, limit: int) -> list[str]:
        rows = self.connection.execute(
            "SELECT CAST(content AS TEXT) FROM messages WHERE role = 'user' "
            "ORDER BY seq DESC LIMIT ?",
            (limit,),
        )
        return [text for (text,) in rows][::-1]

    def _messages(self, condition: str, *values: str) -> Iterator[tuple[str, Message]]:
        """Ids of conversations and their messages; answers whose writer is gone are INTERRUPTED."""
        # The state must be a literal: with a parameter, SQLite would not use its index.
        found = f"SELECT writer, {_MESSAGE} FROM messages WHERE {condition} ORDER BY seq"
        for writer, *row in self.connection.execute(found, values):
            message = message_from(row)
            if message.state == STREAMING and not process.is_alive(writer):
                message.state = INTERRUPTED
            yield row[MESSAGE.index("conversation")], message

    def _put_message(self, message: Message, conversation: str) -> None:
        run = self.connection.execute
        streams = message.state == STREAMING
        writer = process.this_process() if streams else None
        run(_PUT_MESSAGE, (*message_row(message, conversation), writer))
        (seq,) = run("SELECT seq FROM messages WHERE id = ?", (message.id,)).fetchone()
        if streams:
            run("DELETE FROM words WHERE rowid = ?", (seq,))
        else:
            search.index(self.connection, "words", seq, search.searchable_text(message))
