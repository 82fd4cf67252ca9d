"""The history's SQL, over one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from localspec.chat.conversation import INTERRUPTED, STREAMING, USER, Message
from localspec.chat.titles import title_from
from localspec.history import process, search
from localspec.history.rows import (
    HEADER,
    MESSAGE,
    UNTITLED,
    ConversationHeader,
    message_from,
    message_row,
    storable,
)

_HEADER = ", ".join(HEADER)
_MESSAGE = ", ".join(f"m.{name}" for name in MESSAGE)
_WRITTEN = (*MESSAGE, "writer")
_INSERT_HEADER = f"INSERT INTO conversations ({_HEADER}) VALUES ({', '.join('?' * len(HEADER))})"
_UPDATE_HEADER = "UPDATE conversations SET {} WHERE seq = ?".format(
    ", ".join(f"{name} = max({name}, ?)" if name == "updated" else f"{name} = ?" for name in HEADER)
)
_PUT_MESSAGE = (
    f"INSERT INTO messages ({', '.join(_WRITTEN)}) VALUES ({', '.join('?' * len(_WRITTEN))}) "
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
    """One connection, for one thread at a time; errors are SQLite's."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def close(self) -> None:
        self.connection.close()

    def wait(self, seconds: float) -> None:
        self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")

    def put(
        self,
        conversation: str,
        *,
        header: ConversationHeader | None = None,
        messages: Sequence[Message] = (),
        everything: Sequence[Message] = (),
    ) -> None:
        """Write all of it or nothing; arguments as for `History.put`."""
        with self._transaction():
            seq = self._seq_of(conversation)
            if seq is None:
                given = {message.id for message in everything}
                messages = [*everything, *(m for m in messages if m.id not in given)]
                self._insert_header(header or made_up(conversation, messages))
            elif header is not None and header.titled_by != UNTITLED:
                self._update_header(seq, header)
            for message in messages:
                self._put_message(message, conversation)
            if messages:
                self.connection.execute(
                    "UPDATE conversations SET updated = ?1 WHERE id = ?2 AND updated < ?1",
                    (max(message.created for message in messages), conversation),
                )

    def delete(self, ids: Sequence[str]) -> int:
        """Remove conversations; returns how many there were."""
        run = self.connection.execute
        removed = 0
        with self._transaction():
            for id in ids:
                seq = self._seq_of(id)
                if seq is None:
                    continue
                of = "FROM messages WHERE conversation = ?"
                run(f"DELETE FROM words WHERE rowid IN (SELECT seq {of})", (id,))
                run(f"DELETE {of}", (id,))
                run("DELETE FROM titles WHERE rowid = ?", (seq,))
                run("DELETE FROM conversations WHERE seq = ?", (seq,))
                removed += 1
        # The index only notes that words are gone, until it is merged (which takes a second for
        # 80,000 messages). If that has to wait for somebody, the next time does it.
        with suppress(sqlite3.Error):
            for table in search.INDEX:
                run(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
            run("PRAGMA incremental_vacuum").fetchall()
        return removed

    def mark_interrupted(self) -> None:
        """Mark answers whose writer is gone; they can be searched then."""
        growing = self.connection.execute(
            f"SELECT m.writer, {_MESSAGE} FROM messages AS m WHERE m.state = '{STREAMING}'"
        ).fetchall()
        for writer, *row in growing:
            if not process.is_alive(writer):
                message = message_from(row)
                message.state = INTERRUPTED
                self.put(row[MESSAGE.index("conversation")], messages=[message])

    def header(self, id: str) -> ConversationHeader | None:
        row = self.connection.execute(
            f"SELECT {_HEADER} FROM conversations WHERE id = ?", (id,)
        ).fetchone()
        return None if row is None else ConversationHeader.from_row(row)

    def messages(self, conversation: str) -> list[Message]:
        """In order; answers whose writer is gone are interrupted, whatever the row says."""
        rows = self.connection.execute(
            f"SELECT m.writer, {_MESSAGE} FROM messages AS m WHERE m.conversation = ? "
            "ORDER BY m.seq",
            (conversation,),
        )
        found = []
        for writer, *row in rows:
            message = message_from(row)
            if message.state == STREAMING and not process.is_alive(writer):
                message.state = INTERRUPTED
            found.append(message)
        return found

    def count(self) -> int:
        (count,) = self.connection.execute("SELECT count(*) FROM conversations").fetchone()
        return int(count)

    def summaries(self, limit: int, offset: int) -> list[ConversationSummary]:
        rows = self.connection.execute(_SUMMARY, (limit, offset))
        return [ConversationSummary(*row) for row in rows]

    def beginning_with(self, prefix: str, limit: int) -> list[str]:
        rows = self.connection.execute(
            "SELECT id FROM conversations WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (prefix, prefix + "\U0010ffff", limit),
        )
        return [id for (id,) in rows]

    def recent_prompts(self, limit: int) -> list[str]:
        rows = self.connection.execute(
            "SELECT content FROM messages WHERE role = 'user' ORDER BY seq DESC LIMIT ?", (limit,)
        )
        return [text for (text,) in rows][::-1]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # Immediate: one that begins by reading cannot wait for others when it comes to write.
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.connection.execute("COMMIT")
        except BaseException:
            # SQLite has rolled back by itself after some errors.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def _seq_of(self, conversation: str) -> int | None:
        row = self.connection.execute(
            "SELECT seq FROM conversations WHERE id = ?", (conversation,)
        ).fetchone()
        return None if row is None else int(row[0])

    def _insert_header(self, header: ConversationHeader) -> None:
        cursor = self.connection.execute(_INSERT_HEADER, header.row)
        assert cursor.lastrowid is not None
        search.index(self.connection, "titles", cursor.lastrowid, header.title)

    def _update_header(self, seq: int, header: ConversationHeader) -> None:
        run = self.connection.execute
        (title,) = run("SELECT title FROM conversations WHERE seq = ?", (seq,)).fetchone()
        run(_UPDATE_HEADER, (*header.row, seq))
        if title != header.title:
            search.index(self.connection, "titles", seq, header.title)

    def _put_message(self, message: Message, conversation: str) -> None:
        run = self.connection.execute
        grows = message.state == STREAMING
        writer = process.this_process() if grows else None
        run(_PUT_MESSAGE, (*message_row(message, conversation), writer))
        (seq,) = run("SELECT seq FROM messages WHERE id = ?", (message.id,)).fetchone()
        if grows:
            run("DELETE FROM words WHERE rowid = ?", (seq,))
        else:
            search.index(self.connection, "words", seq, search.words(message))


def made_up(conversation: str, messages: Sequence[Message]) -> ConversationHeader:
    """A header for messages without their conversation."""
    text = next((message.content for message in messages if message.role == USER), "")
    created = min((message.created for message in messages), default=0.0)
    return ConversationHeader(
        id=conversation,
        title=storable(title_from(text)),
        titled_by=UNTITLED,
        created=created,
        updated=created,
        tip=messages[-1].id if messages else None,
    )
