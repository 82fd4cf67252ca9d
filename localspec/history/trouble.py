"""What can be wrong with the history's file, in words."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from localspec.history.schema import ForeignFile, NewerHistory

LOCKED, READ_ONLY, FULL, CORRUPT = "locked", "read-only", "full", "corrupt"
NEWER, FOREIGN, FAILING = "newer", "foreign", "failing"

_MEMORY = "New messages are kept in memory only"

_SENTENCES = {
    LOCKED: "Another program keeps the history {path} locked. "
    + _MEMORY
    + " until that program releases it: close it, or wait.",
    READ_ONLY: "The history {path} cannot be written: {why}. "
    + _MEMORY
    + " and will be lost when localspec ends: make the file and its folder writable, or set "
    "LOCALSPEC_HOME to a folder that is.",
    FULL: "The disk is full, so the history {path} cannot grow. " + _MEMORY + " until there is "
    "room: make some.",
    CORRUPT: "The history {path} is damaged. "
    + _MEMORY
    + ": move the file away, and a new one will be started.",
    NEWER: "The history {path} is from a newer version of localspec, and is not changed. "
    + _MEMORY
    + ": update localspec.",
    FOREIGN: "The file {path} is a database of another program, and is not changed. "
    + _MEMORY
    + ": move that file away, or set LOCALSPEC_HOME to another folder.",
    FAILING: "The history {path} cannot be used: {why}. " + _MEMORY + ": look after the disk, or "
    "set LOCALSPEC_HOME to a folder on another one.",
}

_UNREADABLE = {
    LOCKED: "Another program keeps the history {path} locked, so it cannot be read. Close that "
    "program, or wait.",
    CORRUPT: "The history {path} is damaged, so it cannot be read. `localspec chat` sets the file "
    "aside and saves what it can.",
    FAILING: "The history {path} cannot be read: {why}. Look after the disk.",
}

KEPT_AGAIN = "The history is being kept again."
READ_AGAIN = "The history can be read again."

_CODES = {
    5: LOCKED,  # SQLITE_BUSY
    6: LOCKED,  # SQLITE_LOCKED
    8: READ_ONLY,  # SQLITE_READONLY
    11: CORRUPT,  # SQLITE_CORRUPT
    13: FULL,  # SQLITE_FULL
    26: CORRUPT,  # SQLITE_NOTADB
}
# What Python 3.10 has instead of codes.
_MESSAGES = {
    "locked": LOCKED,
    "readonly": READ_ONLY,
    "malformed": CORRUPT,
    "not a database": CORRUPT,
    "is full": FULL,
}
_ROOM = 1 << 20
"""Bytes; with less than that left, it is the full disk that makes a write fail."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing is kept now: its kind, and a sentence with what to do."""

    kind: str
    text: str


def trouble(error: Exception, path: Path, *, reading: bool = False) -> Trouble:
    """What an error means for the history in that file, when it is read or else written."""
    kind = kind_of(error, path)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    sentence = _SENTENCES[kind]
    if reading:
        sentence = _UNREADABLE.get(kind, _UNREADABLE[FAILING])
    return Trouble(kind, sentence.format(path=path, why=why))


def kind_of(error: Exception, path: Path) -> str:
    """One of the kinds above."""
    if isinstance(error, NewerHistory):
        return NEWER
    if isinstance(error, ForeignFile):
        return FOREIGN
    if isinstance(error, OSError):
        return _kind_of_os(error.errno)
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _CODES:
            return _CODES[code & 0xFF]
        for words, kind in _MESSAGES.items():
            if code is None and words in str(error):
                return kind
    return FULL if _no_room(path) else FAILING


def _kind_of_os(number: int | None) -> str:
    if number in (errno.ENOSPC, getattr(errno, "EDQUOT", -1)):
        return FULL
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return READ_ONLY
    return FAILING


def _no_room(path: Path) -> bool:
    try:
        return shutil.disk_usage(path.parent).free < _ROOM
    except OSError:
        return False
