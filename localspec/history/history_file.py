"""Access to the history's file: connections, repair, and a copy in memory while writing fails."""

import errno
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from localspec import paths
from localspec.errors import HistoryError, LocalspecError
from localspec.history import repair
from localspec.history.export import write_export
from localspec.history.schema import UnusableFile, check, connect, migrate, prepare
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

_SHORT_WAIT = 0.2
"""Seconds to wait for other programs after a wait that failed."""

_ERRORS = (sqlite3.Error, OSError, UnusableFile)


class HistoryFile:
    """The history's file. Thread-safe. Opening takes milliseconds, or seconds for a locked or
    damaged file. Reading does not wait for writing. When a write fails, a copy in memory replaces
    the file until everything can be written.

    `path`: by default `paths.history_file()`, created if missing; `repair`: set a damaged file
    aside and start a new one, else report it as trouble; `patience`: seconds to wait for other
    programs that write; `retry`: seconds between attempts to open it, or to write what is only in
    memory. `notices`: sentences for the user, removed when they are shown; `trouble`: why nothing
    is written to disk now; `waiting`: ids of conversations not fully written; `rescued`: files with
    the conversations that could not be stored at the end.
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
        self.retry, self._last_try = retry, 0.0
        # Code that needs both locks acquires them in this order.
        self._write_lock = threading.RLock()
        self._read_lock = threading.RLock()
        self._reader: Statements | None = None
        self._writer: Statements | None = None
        self._memory: Statements | None = None
        self._identity: tuple[int, int] | None = None
        self._open()

    def _open(self) -> None:
        """Reopen the file; on failure, `trouble` has the reason."""
        with self._write_lock, self._read_lock:
            self._last_try = time.monotonic()
            self._disconnect()
            try:
                self._connect()
            except _ERRORS as error:
                self._disconnect()
                self._repair_or_note(error)

    def close(self) -> bool:
        """Write what can still be written, and close the file; returns whether it has everything.
        Remaining conversations are written to separate files."""
        with self._write_lock:
            whole = self.drain(now=True)
            if not whole:
                self.rescued = self._rescue()
                where = f" They are in {', '.join(map(str, self.rescued))}." if self.rescued else ""
                self.notices.append(f"Not all messages could be kept in {self.path}.{where}")
            with self._read_lock:
                self._disconnect()
                self._forget_memory()
            return whole

    def _rescue(self) -> list[Path]:
        """Export waiting conversations to a new folder next to the history, or a temporary one;
        returns the files."""
        with self._read_lock:
            assert self._memory is not None
            waiting = [self._memory.load(id) for id in self.waiting]
        for folder in (self.path.parent, None):
            with suppress(LocalspecError, OSError):
                where = Path(tempfile.mkdtemp(prefix="localspec-", dir=folder))  # private
                return [write_export(chat, where) for chat in waiting if chat is not None]
        return []

    def read(self, question: Callable[[Statements], T]) -> T:
        """Query the copy in memory, or the file. Raises HistoryError if it cannot be read."""
        with self._read_lock:
            if self._memory is not None:
                return question(self._memory)
        return self._read(question)

    def change(self, id: str, change: Callable[[Statements], None]) -> bool:
        """Apply a change to a conversation; returns False if it is in memory only."""
        with self._write_lock:
            if not self.waiting:
                if self.write(change):
                    return True
                self._last_try = time.monotonic()
            with self._read_lock:
                if self._memory is None:  # start from the file's content
                    memory = connect(self.path, "memory", 0.0)
                    with suppress(HistoryError):
                        self._read(lambda statements: statements.connection.backup(memory))
                    migrate(memory)  # the file may be empty, or of an older version
                    self._memory = Statements(memory)
                change(self._memory)
                self.waiting.add(id)
            return self.drain()

    def remove(self, ids: Sequence[str]) -> int:
        """Remove conversations; returns their count. Raises HistoryError if some remain on disk."""
        removed: list[int] = []
        with self._write_lock:
            self.drain()
            if not self.write(lambda file: removed.append(file.delete(ids))):
                try:
                    kept = self._read(lambda file: [id for id in ids if file.load(id)])
                except HistoryError:
                    kept = list(ids)
                if kept and self.trouble is not None:
                    raise HistoryError(self.trouble.text)
            if self._memory is not None:
                removed.append(self._memory.delete(ids))
                self.waiting.difference_update(ids)
        return max(removed, default=0)

    def drain(self, *, now: bool = False) -> bool:
        """Write what is only in memory, at once if `now`, else if `retry` seconds have passed;
        returns whether everything is written."""
        with self._write_lock:
            if self._memory is None:
                return True
            if not now and time.monotonic() - self._last_try < self.retry:
                return False
            self._last_try = time.monotonic()
            if self._writer is None:
                self._open()
            for id in tuple(self.waiting):
                with self._read_lock:
                    kept = self._memory.load(id)
                if kept is not None:
                    messages = list(kept.messages.values())
                    put = partial(Statements.put, conversation=kept, messages=messages)
                    if not self.write(put, None if now else _SHORT_WAIT):
                        return False
                self.waiting.discard(id)
            self._forget_memory()
        return True

    def _forget_memory(self) -> None:
        with self._read_lock:
            self.waiting.clear()
            if self._memory is not None:
                self._memory.connection.close()
                self._memory = None

    def _read(self, question: Callable[[Statements], T]) -> T:
        due = time.monotonic() - self._last_try >= self.retry
        if self._reader is None and self.trouble is not None and due:
            self._open()
        for _ in range(2):
            self._follow_file()
            with self._read_lock:
                identity = self._identity
                if self._reader is None:
                    break
                try:
                    return question(self._reader)
                except _ERRORS as error:
                    failure = error
            if not self._reopen_after(failure, identity):
                break
        if self.trouble is None:
            raise HistoryError("The history is closed. Open it again.")
        raise HistoryError(self.trouble.text)

    def write(self, change: Callable[[Statements], None], patience: float | None = None) -> bool:
        """Apply a change to the file; on failure returns False, and `trouble` has the reason.
        `change` is called again after a repair; `patience`: seconds to wait for other programs."""
        with self._write_lock:
            for _ in range(2):
                self._follow_file()
                if self._writer is None:
                    return False
                try:
                    self._writer.wait(self._patience if patience is None else patience)
                    change(self._writer)
                except _ERRORS as error:
                    if not self._reopen_after(error, self._identity):
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
            # Conversations are private.
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            path.stat()  # a link to a file that is gone
            self._identity = _identity_of(path)
            if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # SQLite reads it
            changes = Path(f"{path}-wal")
            if path.stat().st_size == 0 and changes.exists() and changes.stat().st_size:
                # SQLite would treat the file as new, and discard its write-ahead log.
                raise sqlite3.DatabaseError("file is not a database")
            self._writer = Statements(connect(path, "rw", self._patience))
            prepare(self._writer.connection, self._patience)
            self._reader = Statements(connect(path, "rw", self._patience))
            self._reader.connection.execute("PRAGMA query_only = ON")
            check(self._reader.connection)
            self._writer.mark_interrupted()
        except (OSError, sqlite3.Error) as error:
            # In a read-only folder, SQLite reports only that it cannot open the file.
            if kind_of(error, path) not in (READ_ONLY, FAILING, NO_LOCK) or not path.is_file():
                raise
            self._disconnect()
            self._connect_for_reading(error)

    def _connect_for_reading(self, why: Exception) -> None:
        self._identity = _identity_of(self.path)
        for mode in ("ro", "immutable"):  # the latter if -wal and -shm cannot be created
            try:
                self._reader = Statements(connect(self.path, mode, self._patience))
                check(self._reader.connection)
                break
            except _ERRORS:
                self._disconnect()
        else:
            raise why
        # SQLite's own error may name another cause.
        text = getattr(why, "strerror", None) or str(why)
        no_lock = kind_of(why, self.path) == NO_LOCK
        self._set_trouble(why if no_lock else PermissionError(errno.EACCES, text))

    def _disconnect(self) -> None:
        for statements in (self._reader, self._writer):
            if statements is not None:
                with suppress(sqlite3.Error):
                    statements.connection.close()
        self._reader = self._writer = None

    def _follow_file(self) -> None:
        """Reopen the path if it names another file now: writes to the old one would be lost."""
        if self._reader is None or _identity_of(self.path) == self._identity:
            return
        with self._write_lock, self._read_lock:
            if self._reader is not None and _identity_of(self.path) != self._identity:
                self._open()
                self.notices.append(
                    f"The history {self.path} was removed or replaced by another program. "
                    "New messages go to the current file."
                )

    def _reopen_after(self, error: Exception, identity: tuple[int, int] | None) -> bool:
        """Recover from an error of the file with that identity; returns whether to try again."""
        with self._write_lock, self._read_lock:
            if self._identity == identity:
                return self._repair_or_note(error)
            return self._reader is not None

    def _repair_or_note(self, error: Exception) -> bool:
        """Replace a damaged file by a new one with its readable rows; returns whether that is open.
        Other errors become `trouble`."""
        if kind_of(error, self.path) != CORRUPT or not self._repairs:
            self._set_trouble(error)
            return False
        self._disconnect()
        try:
            with repair.repair_lock(self.path, self._patience):
                damaged = _identity_of(self.path) == self._identity
                aside = repair.set_aside(self.path) if damaged else None
                self._connect()
                if aside is not None and self._writer is not None:  # first to repair it
                    saved = repair.salvage(aside, self._writer, self._patience)
                    rest = f" with the messages that could be read ({saved:,})"
                    self.notices.append(
                        f"The history was damaged. The file is kept as {aside}, and a new one was "
                        f"started{rest if saved else ', but no messages could be read'}."
                    )
        except _ERRORS as failure:
            self._disconnect()
            self._set_trouble(failure)
        return self._reader is not None

    def _set_trouble(self, error: Exception) -> None:
        current = trouble(error, self.path)
        if self.trouble is None or self.trouble.kind != current.kind:
            self.notices.append(current.text)
        self.trouble = current


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file with that name."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
