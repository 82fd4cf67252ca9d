"""Keeps the history's file open, and in memory what it does not take; handles what is wrong."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from localspec import paths
from localspec.chat.conversation import Conversation
from localspec.errors import HistoryError, LocalspecError
from localspec.history import repair
from localspec.history.export import write_export
from localspec.history.schema import (
    ForeignFile,
    NewerHistory,
    check,
    connect,
    in_memory,
    migrate,
    prepare,
)
from localspec.history.statements import Statements
from localspec.history.trouble import (
    CORRUPT,
    FAILING,
    KEPT_AGAIN,
    NO_LOCK,
    READ_ONLY,
    Trouble,
    kind_of,
    trouble,
)

T = TypeVar("T")

_SHORT = 0.2
"""Seconds to wait for others after waiting in vain."""

_ERRORS = (sqlite3.Error, OSError, NewerHistory, ForeignFile)
_OURS = (
    *(sqlite3.ProgrammingError, sqlite3.InterfaceError),
    *(sqlite3.DataError, sqlite3.IntegrityError),
)
"""The fault of what was to be written, not of the file."""


class HistoryFile:
    """The file, for any thread. Opening takes milliseconds, but seconds for a locked or damaged
    file. Reading does not wait for writing. From a write that fails until it can be made up for, a
    copy in memory takes the file's place.

    `path`: by default `paths.history_file()`, created if missing; `repair`: set a damaged file
    aside and begin a new one, else that is trouble like any other; `patience`: seconds to wait for
    other programs that write; `retry`: seconds between two tries to write what could not be
    written. `notices`: sentences for the user, removed by who tells them; `trouble`: why nothing is
    kept on disk now; `waiting`: conversations that memory has more of than the file; `rescued`: the
    files of those that it did not take at the end.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        repair: bool = True,
        patience: float = 5.0,
        retry: float = 5.0,
    ) -> None:
        self.path = (paths.history_file() if path is None else path).absolute()
        self.notices: list[str] = []
        self.trouble: Trouble | None = None
        self.waiting: set[str] = set()
        self.rescued: list[Path] = []
        self._repairs = repair
        self._patience = patience
        self.retry, self._tried = retry, 0.0
        # Taken in this order by who needs both.
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._reader: Statements | None = None
        self._writer: Statements | None = None
        self._memory: Statements | None = None
        self._identity: tuple[int, int] | None = None
        self._closed = False
        self._open()

    def _open(self) -> None:
        """Open the file again; where that fails, `trouble` says why."""
        with self._writing, self._reading:
            self._disconnect()
            if self._closed:
                return
            try:
                self._connect()
            except _ERRORS as error:
                self._disconnect()
                self._mended(error)

    def close(self) -> bool:
        """Write what still can be written, and close the file; whether it has everything. Other
        conversations become files of their own."""
        with self._writing:
            if self._closed:
                return True
            whole = self.drain(now=True)
            if not whole:
                self.rescued = self._rescued()
                where = f" They are in {', '.join(map(str, self.rescued))}." if self.rescued else ""
                self.notices.append(f"Not all messages could be kept in {self.path}.{where}")
            with self._reading:
                self._closed = True
                self._disconnect()
                self._forget_memory()
            return whole

    def _rescued(self) -> list[Path]:
        """Files in a new folder beside the history, or where temporary ones are."""
        with self._reading:
            assert self._memory is not None
            found = [self._memory.load(id) for id in self.waiting]
        for folder in (self.path.parent, None):
            with suppress(LocalspecError, OSError):
                where = Path(tempfile.mkdtemp(prefix="localspec-", dir=folder))  # nobody else's
                return [write_export(one, where, form="md") for one in found if one is not None]
        return []

    def read(self, question: Callable[[Statements], T]) -> T:
        """Ask the memory, or the file; HistoryError where that cannot be read."""
        with self._reading:
            if self._memory is not None:
                return question(self._memory)
        return self._read(question)

    def change(self, id: str, change: Callable[[Statements], None]) -> bool:
        """Change a conversation; False where that is in memory only."""
        with self._writing:
            if self._closed:
                return False
            if not self.waiting:
                if self.write(change):
                    return True
                self._tried = time.monotonic()
            with self._reading:
                if self._memory is None:  # it begins with what the file has
                    memory = in_memory()
                    with suppress(HistoryError):
                        self._read(lambda statements: statements.connection.backup(memory))
                    migrate(memory)  # the file may be empty, or of an older version
                    self._memory = Statements(memory)
                change(self._memory)
                self.waiting.add(id)
            return self.drain()

    def remove(self, ids: Sequence[str]) -> int:
        """Remove conversations, and return how many; a HistoryError if some stay in the file."""
        removed = 0

        def remove(statements: Statements) -> None:
            nonlocal removed
            removed = statements.delete(ids)

        with self._writing:
            self.drain()
            if not self.write(remove):
                try:
                    kept = self._read(lambda file: [id for id in ids if file.load(id)])
                except HistoryError:
                    kept = list(ids)
                if kept and self.trouble is not None:
                    raise HistoryError(self.trouble.text)
            if self._memory is not None:
                removed = max(removed, self._memory.delete(ids))
                self.waiting.difference_update(ids)
        return removed

    def drain(self, *, now: bool = False) -> bool:
        """Write what waits in memory, if `now` or it is time to try; whether nothing waits."""
        with self._writing:
            if self._memory is None:
                return True
            if not now and time.monotonic() - self._tried < self.retry:
                return False
            self._tried = time.monotonic()
            if self._writer is None:
                self._open()
            for id in tuple(self.waiting):
                with self._reading:
                    kept = self._memory.load(id)
                if kept is not None and not self.write(_whole(kept), None if now else _SHORT):
                    return False
                self.waiting.discard(id)
            self._forget_memory()
        return True

    def _forget_memory(self) -> None:
        with self._reading:
            self.waiting.clear()
            if self._memory is not None:
                self._memory.close()
                self._memory = None

    def _read(self, question: Callable[[Statements], T]) -> T:
        for _ in range(2):
            self._follow_file()
            with self._reading:
                identity = self._identity
                if self._reader is None:
                    break
                try:
                    return question(self._reader)
                except _ERRORS as error:
                    failure = error
            if not self._reopened(failure, identity):
                break
        if self.trouble is None:
            raise HistoryError("The history is closed. Open it again.")
        raise HistoryError(self.trouble.text)

    def write(self, change: Callable[[Statements], None], patience: float | None = None) -> bool:
        """Change the file; False where that fails, and `trouble` says why. `change` is called again
        after a repair; `patience`: seconds to wait for other programs."""
        with self._writing:
            for _ in range(2):
                self._follow_file()
                if self._writer is None:
                    return False
                try:
                    self._writer.wait(self._patience if patience is None else patience)
                    change(self._writer)
                except _ERRORS as error:
                    if not self._reopened(error, self._identity):
                        return False
                else:
                    if self.trouble is not None:
                        self.trouble = None
                        self.notices.append(KEPT_AGAIN)
                    return True
        return False

    def _connect(self) -> None:
        path = self.path
        try:
            # What people say to a model is nobody else's business.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            self._identity = _identity_of(path)
            changes = Path(f"{path}-wal")
            if path.stat().st_size == 0 and changes.exists() and changes.stat().st_size:
                # SQLite would take the file for a new one, and throw the changes beside it away.
                raise sqlite3.DatabaseError("file is not a database")
            self._writer = Statements(connect(path, "rw", self._patience))
            prepare(self._writer.connection, self._patience)
            self._reader = Statements(connect(path, "rw", self._patience))
            self._reader.connection.execute("PRAGMA query_only = ON")
            check(self._reader.connection)
            self._writer.mark_interrupted()
        except (OSError, sqlite3.Error) as error:
            # Where a folder is read-only, SQLite says no more than that it cannot open the file.
            if kind_of(error, path) not in (READ_ONLY, FAILING, NO_LOCK) or not path.is_file():
                raise
            self._disconnect()
            self._connect_for_reading(error)

    def _connect_for_reading(self, why: Exception) -> None:
        self._identity = _identity_of(self.path)
        for mode in ("ro", "immutable"):  # the latter where the file's companions cannot be made
            try:
                connection = connect(self.path, mode, self._patience)
            except sqlite3.Error:
                continue
            try:
                check(connection)
            except _ERRORS:
                connection.close()
                continue
            self._reader = Statements(connection)
            # Whatever SQLite called it.
            text = getattr(why, "strerror", None) or str(why)
            no_lock = kind_of(why, self.path) == NO_LOCK
            self._note(why if no_lock else PermissionError(errno.EACCES, text))
            return
        raise why

    def _disconnect(self) -> None:
        for statements in (self._reader, self._writer):
            if statements is not None:
                with suppress(sqlite3.Error):
                    statements.close()
        self._reader = self._writer = None

    def _follow_file(self) -> None:
        """Leave a file that lost its name: writes into it would be lost."""
        if self._reader is None or _identity_of(self.path) == self._identity:
            return
        with self._writing, self._reading:
            if self._reader is not None and _identity_of(self.path) != self._identity:
                self._open()
                self.notices.append(
                    f"The history {self.path} was removed or replaced by another program. "
                    "New messages go to the current file."
                )

    def _reopened(self, error: Exception, identity: tuple[int, int] | None) -> bool:
        """After an error of the file with that identity: whether to try again."""
        if isinstance(error, _OURS):
            raise error
        with self._writing, self._reading:
            if self._identity == identity:
                return self._mended(error)
            return self._reader is not None

    def _mended(self, error: Exception) -> bool:
        """Replace a damaged file by one that has what could be read of it, and open that; whether
        it is open. Other errors become `trouble`."""
        if kind_of(error, self.path) != CORRUPT or not self._repairs:
            self._note(error)
            return False
        self._disconnect()
        try:
            with repair.exclusively(self.path, self._patience):
                damaged = _identity_of(self.path) == self._identity
                aside = repair.set_aside(self.path) if damaged else None
                self._connect()
                if aside is not None and self._writer is not None:  # no other process was first
                    self._fill(self._writer, aside)
        except _ERRORS as failure:
            self._disconnect()
            self._note(failure)
        return self._reader is not None

    def _fill(self, writer: Statements, aside: Path) -> None:
        saved = repair.salvage(aside, writer, self._patience)
        self.notices.append(
            f"The history was damaged. The file is kept as {aside}, and a new one was started "
            + (f"with the {saved:,} messages that could be read." if saved else "without it.")
        )

    def _note(self, error: Exception) -> None:
        found = trouble(error, self.path)
        if self.trouble is None or self.trouble.kind != found.kind:
            self.notices.append(found.text)
        self.trouble = found


def _whole(conversation: Conversation) -> Callable[[Statements], None]:
    messages = list(conversation.messages.values())
    return lambda statements: statements.put(conversation, messages)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file with that name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
