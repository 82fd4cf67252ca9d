"""What the history says to SQLite, over one connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

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
    packed,
    storable,
    unpacked,
)
from localspec.history.schema import INDEX

_HEADER = ", ".join(HEADER)
_MESSAGE = ", ".join(f"m.{name}" for name in MESSAGE)
_SUMMARY = (
    "SELECT id, title, updated, "
    "(SELECT count(*) FROM messages AS m WHERE m.conversation = c.id), model "
    "FROM conversations AS c"
)


@dataclass(frozen=True, slots=True)
class ConversationSummary:
    """A conversation in a list: `messages` counts those of all branches."""

    id: str
    title: str
    updated: float
    messages: int
    model: str | None


class Statements:
    """One connection. Not for two threads at once; errors are SQLite's own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        # Text of answers that grow here, as far as it is written; what others write is no concern.
        self._grown: dict[str, str] = {}

    def close(self) -> None:
        """Close the connection; the last one of all tidies the file up."""
        self.connection.close()

    def accept_invalid_utf8(self) -> None:
        """Read what is no UTF-8 as well: damaged bytes are to be seen, and not to hide the rest.

        Not from the beginning, because it takes longer.
        """
        self.connection.text_factory = lambda data: data.decode("utf-8", "replace")

    def wait(self, seconds: float) -> None:
        """How long to wait for others that write."""
        self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")

    def put(
        self,
        conversation: str,
        *,
        header: ConversationHeader | None = None,
        messages: Sequence[Message] = (),
        everything: Sequence[Message] = (),
    ) -> None:
        """Write all of it, or nothing.

        Args:
            conversation: id.
            header: what else is known of it; None leaves that as it is.
            messages: new ones, or such that have changed.
            everything: all messages. They are written if the conversation turns out not to be here,
                because another program removed it, or the file.
        """
        grown: dict[str, str | None] = {}
        with self._transaction():
            seq = self._seq_of(conversation)
            if seq is None:
                all_of_them = {message.id for message in everything}
                messages = [*everything, *(m for m in messages if m.id not in all_of_them)]
                header = header or _made_up(conversation, messages)
                self._insert_header(header)
            elif header is not None and header.titled_by != UNTITLED:
                self._update_header(seq, header)
            for message in messages:
                grown[message.id] = self._put_message(message, conversation)
            if messages:
                self.connection.execute(
                    "UPDATE conversations SET updated = ?1 WHERE id = ?2 AND updated < ?1",
                    (max(message.created for message in messages), conversation),
                )
        for id, text in grown.items():
            if text is None:
                self._grown.pop(id, None)
            else:
                self._grown[id] = text

    def delete(self, ids: Sequence[str]) -> int:
        """Remove conversations; returns how many of them were there."""
        run = self.connection.execute
        removed = 0
        with self._transaction():
            for id in ids:
                seq = self._seq_of(id)
                if seq is None:
                    continue
                of = "FROM messages WHERE conversation = ?"
                run(f"DELETE FROM words WHERE rowid IN (SELECT seq {of})", (id,))
                run(f"DELETE FROM growth WHERE message IN (SELECT id {of})", (id,))
                run(f"DELETE {of}", (id,))
                run("DELETE FROM titles WHERE rowid = ?", (seq,))
                run("DELETE FROM conversations WHERE seq = ?", (seq,))
                removed += 1
        # The index only notes that words are gone, until it is merged (which takes a second for
        # 80,000 messages). If that has to wait for somebody, the next time does it.
        with suppress(sqlite3.Error):
            for table in INDEX:
                run(f"INSERT INTO {table} ({table}) VALUES ('optimize')")
            run("PRAGMA incremental_vacuum").fetchall()
        return removed

    def mark_interrupted(self) -> None:
        """Call all answers interrupted whose writer is gone."""
        growing = self.connection.execute(
            f"SELECT id, conversation, writer FROM messages WHERE state = '{STREAMING}'"
        ).fetchall()
        for id, of, who in growing:
            if not process.is_alive(who):
                for message in self.messages(of, only=id):
                    message.state = INTERRUPTED
                    self.put(of, messages=[message])

    def headers(self) -> list[ConversationHeader]:
        """All conversations; for a store that has few."""
        rows = self.connection.execute(f"SELECT {_HEADER} FROM conversations ORDER BY seq")
        return [ConversationHeader.from_row(row) for row in rows]

    def header(self, id: str) -> ConversationHeader | None:
        """One conversation without its messages."""
        row = self.connection.execute(
            f"SELECT {_HEADER} FROM conversations WHERE id = ?", (id,)
        ).fetchone()
        return None if row is None else ConversationHeader.from_row(row)

    def messages(self, conversation: str, *, only: str | None = None) -> list[Message]:
        """The messages of a conversation in the order in which they came, or one of them.

        An answer whose writer is gone is interrupted, whatever its row says.
        """
        which, id = ("conversation", conversation) if only is None else ("id", only)
        rows = self.connection.execute(
            f"SELECT m.writer, {_MESSAGE} FROM messages AS m WHERE m.{which} = ? ORDER BY m.seq",
            (id,),
        )
        found = []
        for who, *row in rows:
            message = message_from(row)
            if message.state == STREAMING:
                self.collect(message)
                if not process.is_alive(who):
                    message.state = INTERRUPTED
            found.append(message)
        return found

    def growing(self, conversation: str) -> set[str]:
        """Ids of its messages whose rows say that somebody is writing them."""
        rows = self.connection.execute(
            f"SELECT id FROM messages WHERE state = '{STREAMING}' AND conversation = ?",
            (conversation,),
        )
        return {id for (id,) in rows}

    def ids(self, conversation: str) -> list[str]:
        """Ids of its messages."""
        rows = self.connection.execute(
            "SELECT id FROM messages WHERE conversation = ? ORDER BY seq", (conversation,)
        )
        return [id for (id,) in rows]

    def count(self) -> int:
        """How many conversations there are."""
        (count,) = self.connection.execute("SELECT count(*) FROM conversations").fetchone()
        return int(count)

    def summaries(self, limit: int, offset: int) -> list[ConversationSummary]:
        """Conversations, newest first."""
        rows = self.connection.execute(
            f"{_SUMMARY} ORDER BY updated DESC, seq DESC LIMIT ? OFFSET ?", (limit, offset)
        )
        return [ConversationSummary(*row) for row in rows]

    def summary(self, id: str) -> ConversationSummary | None:
        """One of them."""
        row = self.connection.execute(f"{_SUMMARY} WHERE id = ?", (id,)).fetchone()
        return None if row is None else ConversationSummary(*row)

    def beginning_with(self, prefix: str, limit: int) -> list[str]:
        """Ids of conversations."""
        rows = self.connection.execute(
            "SELECT id FROM conversations WHERE id >= ? AND id < ? ORDER BY id LIMIT ?",
            (prefix, prefix + "\U0010ffff", limit),
        )
        return [id for (id,) in rows]

    def recent_prompts(self, limit: int) -> list[str]:
        """What the user wrote last, oldest first."""
        rows = self.connection.execute(
            "SELECT content FROM messages WHERE role = 'user' ORDER BY seq DESC LIMIT ?", (limit,)
        )
        return [text for (text,) in rows][::-1]

    def rebuild_index(self) -> None:
        """Make the full-text index anew."""
        with self._transaction():
            search.clear(self.connection)
            for seq, title in self.connection.execute("SELECT seq, title FROM conversations"):
                search.index(self.connection, "titles", seq, title)
            for seq, *row in self.connection.execute(
                f"SELECT m.seq, {_MESSAGE} FROM messages AS m WHERE m.state <> '{STREAMING}'"
            ):
                search.index(self.connection, "words", seq, search.words(message_from(row)))

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
        marks = ", ".join("?" * len(HEADER))
        cursor = self.connection.execute(
            f"INSERT INTO conversations ({_HEADER}) VALUES ({marks})", header.row()
        )
        assert cursor.lastrowid is not None
        search.index(self.connection, "titles", cursor.lastrowid, header.title)

    def _update_header(self, seq: int, header: ConversationHeader) -> None:
        run = self.connection.execute
        (title,) = run("SELECT title FROM conversations WHERE seq = ?", (seq,)).fetchone()
        columns = ", ".join(
            f"{name} = max({name}, ?)" if name == "updated" else f"{name} = ?" for name in HEADER
        )
        run(f"UPDATE conversations SET {columns} WHERE seq = ?", (*header.row(), seq))
        if title != header.title:
            search.index(self.connection, "titles", seq, header.title)

    def _put_message(self, message: Message, conversation: str) -> str | None:
        """Write it; returns the text that is written of one that grows, None for others."""
        run = self.connection.execute
        # The caller may go on adding to it.
        content = message.content
        if message.state == STREAMING:
            if self._append(message, content):
                return content
            run("DELETE FROM growth WHERE message = ?", (message.id,))
            empty = replace(message, content="", spans=None)
            self._upsert(empty, conversation, who=process.this_process())
            run(
                "INSERT INTO growth VALUES (?, 0, ?, ?)", (message.id, *_piece(message, content, 0))
            )
            return content
        seq = self._upsert(message, conversation, who=None)
        run("DELETE FROM growth WHERE message = ?", (message.id,))
        search.index(self.connection, "words", seq, search.words(message))
        return None

    def _append(self, message: Message, content: str) -> bool:
        """Write what an answer has grown by; False if its beginning is not there.

        Written whole each time, a long answer would cost the square of its length.
        """
        before = self._grown.get(message.id)
        if before is None or not content.startswith(before):
            return False
        run = self.connection.execute
        # Another process may have taken it for interrupted, or have removed it.
        still = run(
            "UPDATE messages SET state = ?, writer = ? WHERE id = ?",
            (STREAMING, process.this_process(), message.id),
        )
        if not still.rowcount:
            return False
        if len(content) > len(before):
            run(
                "INSERT OR REPLACE INTO growth VALUES (?, ?, ?, ?)",
                (message.id, len(before), *_piece(message, content, len(before))),
            )
        return True

    def _upsert(self, message: Message, conversation: str, *, who: str | None) -> int:
        """Insert or update the row of a message, and take it out of the index; returns its seq."""
        run = self.connection.execute
        row = (*message_row(message, conversation), who)
        names = (*MESSAGE, "writer")
        found = run("SELECT seq FROM messages WHERE id = ?", (message.id,)).fetchone()
        if found is None:
            marks = ", ".join("?" * len(names))
            cursor = run(f"INSERT INTO messages ({', '.join(names)}) VALUES ({marks})", row)
            assert cursor.lastrowid is not None
            return cursor.lastrowid
        columns = ", ".join(f"{name} = ?" for name in names)
        run(f"UPDATE messages SET {columns} WHERE seq = ?", (*row, *found))
        run("DELETE FROM words WHERE rowid = ?", found)
        return int(found[0])

    def collect(self, message: Message) -> None:
        """Put an answer together from its pieces."""
        spans = list(message.spans or ())
        for at, text, runs in self.connection.execute(
            "SELECT at, text, spans FROM growth WHERE message = ? ORDER BY at", (message.id,)
        ):
            message.content = message.content[:at] + text
            spans += unpacked(runs) or []
        if spans:
            message.spans = spans


def _piece(message: Message, content: str, start: int) -> tuple[str, str | None]:
    """Text from `start` on, and the runs over it."""
    if message.spans is None:
        return storable(content[start:]), None
    runs: list[tuple[int, str]] = []
    end = 0
    for length, source in list(message.spans):
        end += length
        if end > start:
            runs.append((min(length, end - start), source))
    return storable(content[start:]), packed(runs)


def _made_up(conversation: str, messages: Sequence[Message]) -> ConversationHeader:
    """The header of a conversation of which only messages are known."""
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
