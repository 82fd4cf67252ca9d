"""Repair of a damaged history: set the file aside, and copy its readable rows."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from localspec.chat.conversation import USER, Conversation, Message
from localspec.chat.titles import title_from
from localspec.history.rows import HEADER, MESSAGE, conversation_from, message_from
from localspec.history.schema import connect
from localspec.history.statements import Statements

_MIN_ROW_BYTES = 20
"""Minimum bytes of a row, for an upper bound on the rows of a file."""
_MAX_QUERIES = 20_000
"""Maximum number of row ranges to read; takes about a second."""


@contextmanager
def repair_lock(path: Path, patience: float) -> Iterator[None]:
    """Let one process repair at a time; raises sqlite3.Error after `patience` seconds. SQLite locks
    a file next to the history, so the lock ends with its owner."""
    lock = path.with_name(f"{path.name}.repair")
    with closing(sqlite3.connect(lock, timeout=patience, isolation_level=None)) as held:
        held.execute("BEGIN EXCLUSIVE")
        yield
        lock.unlink(missing_ok=True)


def set_aside(path: Path) -> Path:
    """Rename the file with its -wal and -shm; returns the new path."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    path.rename(aside)
    for ending in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{ending}").rename(f"{aside}{ending}")
    return aside


def salvage(aside: Path, into: Statements, patience: float) -> int:
    """Copy the readable rows; returns the number of messages."""
    # Opening an empty file would discard its write-ahead log, which may hold everything.
    size = aside.stat().st_size
    if size == 0:
        return 0
    try:
        old = connect(aside, "ro", patience)
    except sqlite3.Error:
        return 0
    with closing(old):
        headers = {
            row[0]: row
            for row in _rows(old, "conversations", HEADER, size // _MIN_ROW_BYTES)
            if row[0]
        }
        messages: dict[str, list[Message]] = {}
        for row in _rows(old, "messages", MESSAGE, size // _MIN_ROW_BYTES):
            conversation = row[MESSAGE.index("conversation")]
            if row[0] and isinstance(conversation, str) and conversation:
                messages.setdefault(conversation, []).append(message_from(row))
    for id in {**headers, **messages}:
        found = messages.get(id, [])
        if id in headers:
            into.put(conversation_from(headers[id], found), ())
        else:
            text = next((message.content for message in found if message.role == USER), "")
            created = min(message.created for message in found)
            by_id = {message.id: message for message in found}
            into.put(Conversation(id, title_from(text), created=created, messages=by_id), ())
    return sum(map(len, messages.values()))


def _rows(
    connection: sqlite3.Connection, table: str, columns: tuple[str, ...], most: int
) -> Iterator[Any]:
    """The readable rows in order. Unreadable ranges are halved down to single rows, so a bad page
    costs only its own rows."""
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE seq BETWEEN ? AND ? ORDER BY seq"
    try:
        (last,) = connection.execute(f"SELECT max(seq) FROM {table}").fetchone()
        last = last if isinstance(last, int) else 0
    except sqlite3.Error as error:
        if "malformed" not in str(error):
            return  # no database, or none with such a table
        last = most
    stretches = [(1, min(last, most))]
    for _ in range(_MAX_QUERIES):
        if not stretches:
            return
        low, high = stretches.pop()
        try:
            found = connection.execute(sql, (low, high)).fetchall()
        except sqlite3.Error:
            if low < high:
                middle = (low + high) // 2
                stretches += [(middle + 1, high), (low, middle)]
            continue
        yield from found
