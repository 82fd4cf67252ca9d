"""Keeps the history's file open and in order: what to do about each thing that is wrong with it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from localspec.errors import HistoryError
from localspec.history import repair
from localspec.history.connections import Connections, identity_of, open_connections
from localspec.history.schema import ForeignFile, NewerHistory
from localspec.history.statements import Statements
from localspec.history.trouble import CORRUPT, KEPT_AGAIN, READ_AGAIN, Trouble, kind_of, trouble

T = TypeVar("T")

_ERRORS = (sqlite3.Error, OSError, NewerHistory, ForeignFile)
READING, WRITING = "reading", "writing"
"""What there may be trouble with; a file that cannot be opened counts as one for writing."""
_OURS = (
    *(sqlite3.ProgrammingError, sqlite3.InterfaceError),
    *(sqlite3.DataError, sqlite3.IntegrityError),
)
"""Not the file's fault, but that of what was to be written."""
_TRIES = 3
"""Of one read or write: damage to the index, then to the file, may be mended in between."""


class HistoryFile:
    """The file, from any thread. Reading does not wait for writing.

    Attributes:
        notices: what the user is to be told, to be taken away by whoever tells it.

    Args:
        path, repairs, patience: as for `History`.
    """

    def __init__(self, path: Path, *, repairs: bool, patience: float) -> None:
        self.notices: list[str] = []
        self._path = path
        self._repairs = repairs
        self._patience = patience
        # Taken in this order by who needs both.
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._troubles: dict[str, Trouble] = {}
        self._connections: Connections | None = None
        self._index_rebuilt = False
        self._closed = False
        self.open()

    def open(self) -> None:
        """Open the file (anew); where that fails, `trouble` says why."""
        with self._writing, self._reading:
            if self._closed:
                return
            if self._connections is not None:
                self._connections.close()
                self._connections = None
            try:
                self._connections = connections = self._opened()
            except _ERRORS as error:
                self._note(error)
                return
            if connections.writer is None:
                assert connections.why_read_only is not None
                self._note(connections.why_read_only)
                return
            try:
                connections.writer.mark_interrupted()
            except _ERRORS as error:
                self._mend(connections, error)

    def close(self) -> None:
        """Let go of the file, for good."""
        with self._writing, self._reading:
            self._closed = True
            if self._connections is not None:
                self._connections.close()
                self._connections = None

    @property
    def trouble(self) -> Trouble | None:
        """Why the file cannot be used as it should now; None where all is well."""
        return self._troubles.get(WRITING) or self._troubles.get(READING)

    @contextmanager
    def waiting(self, seconds: float) -> Iterator[None]:
        """Wait no longer than that for other programs."""
        with self._writing:
            before, self._patience = self._patience, min(seconds, self._patience)
            try:
                yield
            finally:
                self._patience = before

    @property
    def writable(self) -> bool:
        """Whether the file is open, and not for reading only."""
        connections = self._connections
        return connections is not None and connections.writer is not None

    def read(self, question: Callable[[Statements], T]) -> T:
        """Ask the file.

        Raises:
            HistoryError: it cannot be read; `trouble` says why.
        """
        for _ in range(_TRIES):
            self._follow_file()
            with self._reading:
                connections = self._connections
                if connections is None:
                    break
                try:
                    found = question(connections.reader)
                except _ERRORS as error:
                    failure = error
                else:
                    return found
            if not self._mend(connections, failure, READING):
                break
        why = self._troubles.get(READING) or self.trouble
        if why is None:
            raise HistoryError("The history is closed. Open it again.")
        raise HistoryError(why.text)

    def write(self, change: Callable[[Statements], None]) -> bool:
        """Change the file; False if that cannot be done, and `trouble` says why."""
        with self._writing:
            for _ in range(_TRIES):
                self._follow_file()
                connections = self._connections
                if connections is None or connections.writer is None:
                    return False
                try:
                    connections.writer.wait(self._patience)
                    change(connections.writer)
                except _ERRORS as error:
                    if not self._mend(connections, error):
                        return False
                else:
                    return True
        return False

    def trouble_over(self, side: str) -> None:
        """There is no trouble with reading, or with writing, any more: tell it."""
        if self._troubles.pop(side, None) is not None:
            self.notices.append(KEPT_AGAIN if side == WRITING else READ_AGAIN)

    def _opened(self) -> Connections:
        try:
            return open_connections(self._path, patience=self._patience)
        except (sqlite3.Error, OSError) as error:
            if not self._repairs or kind_of(error, self._path) != CORRUPT:
                raise
        self._set_aside(None)
        return open_connections(self._path, patience=self._patience)

    def _follow_file(self) -> None:
        """Let go of a file that lost its name: what is written into it would be lost."""
        connections = self._connections
        if connections is None or identity_of(self._path) == connections.identity:
            return
        with self._writing, self._reading:
            if self._connections is connections and not self._closed:
                self.open()
                self.notices.append(
                    f"The history {self._path} was removed or replaced by another program. "
                    "New messages go to the current file."
                )

    def _mend(self, connections: Connections, error: Exception, side: str = WRITING) -> bool:
        """Do something about an error, if that can be done; True if it is worth another try."""
        if isinstance(error, _OURS):
            raise error
        if "decode" in str(error):
            for statements in (connections.reader, connections.writer):
                if statements is not None:
                    statements.accept_invalid_utf8()
            return True
        if kind_of(error, self._path) != CORRUPT or not self._repairs:
            self._note(error, side)
            return False
        with self._writing, self._reading:
            if self._connections is not connections:
                return self._connections is not None
            connections.close()
            self._connections = None
            try:
                if not self._rebuild_index():
                    self._set_aside(connections)
            except _ERRORS as failure:
                self._note(failure)
                return False
            self.open()
            return self._connections is not None

    def _rebuild_index(self) -> bool:
        """Where nothing but the index is damaged, and that for the first time, make it anew."""
        if self._index_rebuilt or not repair.is_sound(self._path, patience=self._patience):
            return False
        self._index_rebuilt = True
        try:
            connections = open_connections(self._path, patience=self._patience)
        except _ERRORS:
            return False
        try:
            if connections.writer is None:
                return False
            connections.writer.rebuild_index()
        except sqlite3.Error:
            return False
        finally:
            connections.close()
        return True

    def _set_aside(self, connections: Connections | None) -> None:
        """Keep the damaged file under another name, and fill a new one from it."""
        with repair.exclusively(self._path, patience=self._patience) as first:
            moved = connections is not None and identity_of(self._path) != connections.identity
            if not first or moved:
                return  # by another process, meanwhile
            aside = repair.set_aside(self._path)
            new = open_connections(self._path, patience=self._patience)
            try:
                saved = 0
                if new.writer is not None:
                    saved = repair.salvage(aside, new.writer, patience=self._patience)
            finally:
                new.close()
        self.notices.append(
            f"The history was damaged. The file is kept as {aside}, and a new one was started "
            + (f"with the {saved:,} messages that could be read." if saved else "without it.")
        )

    def _note(self, error: Exception, side: str = WRITING) -> None:
        """Be in trouble, and tell it once."""
        found = trouble(error, self._path, reading=side == READING)
        if all(known.kind != found.kind for known in self._troubles.values()):
            self.notices.append(found.text)
        self._troubles[side] = found
