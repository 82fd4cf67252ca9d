"""A damaged history: the file is kept aside, and what can be read of it goes into a new one."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from localspec.chat.conversation import STREAMING, Message
from localspec.history import process
from localspec.history.rows import HEADER, MESSAGE, ConversationHeader, message_from
from localspec.history.schema import connect
from localspec.history.statements import Statements

_STEP = 0.05
"""Seconds between two looks at whether another process is done."""
_EMPTY = 10.0
"""Seconds after which nobody will sign an empty mark any more."""
_SHORTEST = 20
"""Bytes of a row, at least: a file has no more rows than that allows."""
_TRIES = 20_000
"""Stretches of rows that are tried; about a second."""


@contextmanager
def exclusively(path: Path, *, patience: float) -> Iterator[bool]:
    """One process at a time repairs; gives False where another one did, or still does."""
    mark = Path(f"{path}.repair")
    deadline = time.monotonic() + patience
    waited = False
    while True:
        try:
            descriptor = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            break
        except FileExistsError:
            if not _is_held(mark):
                mark.unlink(missing_ok=True)
            elif time.monotonic() > deadline:
                yield False
                return
            else:
                waited = True
                time.sleep(_STEP)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(process.this_process())
        yield not waited
    finally:
        mark.unlink(missing_ok=True)


def _is_held(mark: Path) -> bool:
    try:
        holder, age = mark.read_text(encoding="ascii"), time.time() - mark.stat().st_mtime
    except OSError:
        return False
    # It is empty for a moment at first.
    return process.is_alive(holder) if holder else abs(age) < _EMPTY


def is_sound(path: Path, *, patience: float) -> bool:
    """Whether SQLite finds nothing wrong with the file, but for what is in the index."""
    with suppress(sqlite3.Error):
        connection = connect(path, mode="rw", patience=patience)
        try:
            return bool(connection.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")
        finally:
            connection.close()
    return False


def set_aside(path: Path) -> Path:
    """Rename the file, and its companions with it; returns its new name.

    Raises:
        OSError: it cannot be renamed.
    """
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


def salvage(aside: Path, into: Statements, *, patience: float) -> int:
    """Copy what can be read; returns how many messages that is.

    Raises:
        sqlite3.Error: the new file cannot be written.
    """
    # Opened, an empty file would have its companions, which may hold everything, thrown away.
    size = aside.stat().st_size
    if size == 0:
        return 0
    most = size // _SHORTEST
    try:
        old = connect(aside, mode="ro", patience=patience)
    except sqlite3.Error:
        return 0
    Statements(old).accept_invalid_utf8()
    try:
        headers = {
            header.id: header
            for header in map(
                ConversationHeader.from_row, _rows(old, "conversations", HEADER, most=most)
            )
            if header.id
        }
        messages: dict[str, dict[str, Message]] = {}
        for row in _rows(old, "messages", MESSAGE, most=most):
            message, conversation = message_from(row), row[MESSAGE.index("conversation")]
            if message.id and isinstance(conversation, str) and conversation:
                if message.state == STREAMING:
                    _collect(old, message)
                messages.setdefault(conversation, {})[message.id] = message
    finally:
        old.close()
    for id in [*headers, *(id for id in messages if id not in headers)]:
        into.put(id, header=headers.get(id), messages=list(messages.get(id, {}).values()))
    return sum(map(len, messages.values()))


def _rows(
    connection: sqlite3.Connection, table: str, columns: tuple[str, ...], *, most: int
) -> Iterator[Any]:
    """The rows that can be read, in their order.

    Where a stretch of them cannot, its halves are tried, down to single rows: a bad page costs the
    rows that are on it, and no more.
    """
    sql = f"SELECT {', '.join(columns)} FROM {table} WHERE seq BETWEEN ? AND ? ORDER BY seq"
    try:
        (last,) = connection.execute(f"SELECT max(seq) FROM {table}").fetchone()
        last = last if isinstance(last, int) else 0
    except sqlite3.Error as error:
        if "malformed" not in str(error):
            return  # no database, or none with such a table
        last = most
    stretches = [(1, min(last, most))]
    for _ in range(_TRIES):
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


def _collect(connection: sqlite3.Connection, message: Message) -> None:
    """The pieces of an answer that was growing, as far as they can be read."""
    with suppress(sqlite3.Error):
        Statements(connection).collect(message)
