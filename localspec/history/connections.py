"""The history's file while it is open: one connection that writes, one that reads."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from localspec.history.schema import check, connect, prepare
from localspec.history.statements import Statements
from localspec.history.trouble import FAILING, READ_ONLY, kind_of

Identity = tuple[int, int]
"""Device and number of a file: another one may come to have its name."""


@dataclass(slots=True)
class Connections:
    """An open file.

    Attributes:
        identity: of the file, which need not be the one that has its name now.
        reader: reads while the other one writes or waits.
        writer: None where the file cannot be written; `why_read_only` has the error then.
    """

    identity: Identity
    reader: Statements
    writer: Statements | None
    why_read_only: Exception | None = None

    def close(self) -> None:
        """Close both; what is committed is safe in any case."""
        for statements in (self.reader, self.writer):
            if statements is not None:
                with suppress(sqlite3.Error):
                    statements.close()


def identity_of(path: Path) -> Identity | None:
    """The file that has that name now."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def open_connections(path: Path, *, patience: float) -> Connections:
    """Open the file, and make it, with its folders, if it is not there.

    Args:
        path: the file.
        patience: seconds to wait for other programs.

    Raises:
        OSError, sqlite3.Error, NewerHistory, ForeignFile: what `trouble` makes sentences of.
    """
    try:
        return _open_for_writing(path, patience)
    except (OSError, sqlite3.Error) as error:
        # Where a folder is read-only, SQLite says no more than that it cannot open the file.
        if kind_of(error, path) not in (READ_ONLY, FAILING) or not path.is_file():
            raise
        try:
            return _open_for_reading(path, patience, error)
        except (OSError, sqlite3.Error):
            raise error from None


def _open_for_writing(path: Path, patience: float) -> Connections:
    # What people say to a model is nobody else's business.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    if path.stat().st_size == 0 and _has_content(Path(f"{path}-wal")):
        # SQLite would take the file for a new one, and throw away the changes beside it.
        raise sqlite3.DatabaseError("file is not a database")
    identity = identity_of(path)
    if identity is None:
        raise FileNotFoundError(f"{path} vanished while it was opened")
    made: list[sqlite3.Connection] = []
    try:
        for _ in range(2):
            made.append(connect(path, mode="rw", patience=patience))
            if len(made) == 1:
                prepare(made[0], path, patience=patience)
        made[1].execute("PRAGMA query_only = ON")
        check(made[1])
    except BaseException:
        for connection in made:
            connection.close()
        raise
    return Connections(identity, reader=Statements(made[1]), writer=Statements(made[0]))


def _open_for_reading(path: Path, patience: float, why: Exception) -> Connections:
    identity = identity_of(path)
    if identity is None:
        raise why
    # The file's companions, which even a reader needs, cannot be made in a read-only folder. It is
    # read without them then; what they hold (the last few messages) is not seen.
    try:
        connection = _checked(path, "ro", patience)
    except sqlite3.Error:
        connection = _checked(path, "immutable", patience)
    # Whatever SQLite called it.
    read_only = PermissionError(errno.EACCES, getattr(why, "strerror", None) or str(why))
    return Connections(identity, Statements(connection), writer=None, why_read_only=read_only)


def _checked(path: Path, mode: Literal["ro", "immutable"], patience: float) -> sqlite3.Connection:
    connection = connect(path, mode=mode, patience=patience)
    try:
        check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
