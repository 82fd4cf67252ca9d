"""Causes of trouble with the history's file, and the sentences that report them."""

import errno
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from localspec.files import NO_LOCKS, free_space
from localspec.history.schema import FOREIGN, NEWER, UnusableFile

LOCKED, READ_ONLY, FULL, CORRUPT = "locked", "read-only", "full", "corrupt"
FAILING, NO_LOCK = "failing", "no locks"

_SENTENCES = {
    LOCKED: "Another program keeps the history {path} locked. {memory} until that program releases "
    "it: close it, or wait.",
    NO_LOCK: "The history {path} is on a file system without locks, and is not changed. {memory}: "
    "set LOCALSPEC_HOME to a folder on a local disk.",
    READ_ONLY: "The history {path} cannot be written: {why}. {memory}, and in separate files "
    "at the end: check permissions, disk and 'ulimit -f', or set LOCALSPEC_HOME to another folder.",
    FULL: "The disk is full, so the history {path} cannot grow. {memory} until there is room: make "
    "some.",
    CORRUPT: "The history {path} is damaged. {memory}: 'localspec chat' sets the file aside and "
    "saves what it can, or move it away yourself.",
    NEWER: "The history {path} is from a newer version of localspec, and is not changed. {memory}: "
    "update localspec.",
    FOREIGN: "The file {path} is a database of another program, and is not changed. {memory}: move "
    "that file away, or set LOCALSPEC_HOME to another folder.",
    FAILING: "The history {path} cannot be used: {why}. {memory}: check the disk, or set "
    "LOCALSPEC_HOME to a folder on another one.",
}
_MEMORY = "New messages are kept in memory only"

KEPT_AGAIN = "The history is being saved again."

_DAMAGED = "malformed|not a database|constructor failed|fts5|no such|no column|already exists"
"""Includes errors of a damaged schema or index, because the statements never change."""
_MESSAGES = {"locked": LOCKED, "readonly": READ_ONLY, _DAMAGED: CORRUPT, "is full": FULL}
"""Patterns of SQLite's messages: Python 3.10 has no error codes."""
_MIN_FREE = 1 << 20
"""Free bytes below which a failing write means a full disk."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing is written now: the kind, and a sentence with a next step."""

    kind: str
    text: str


def trouble(error: Exception, path: Path) -> Trouble:
    kind = kind_of(error, path)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return Trouble(kind, _SENTENCES[kind].format(path=path, why=why, memory=_MEMORY))


def kind_of(error: Exception, path: Path) -> str:
    if isinstance(error, UnusableFile):
        return str(error)
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", -1)):
            return FULL
        refused = error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
        return READ_ONLY if refused else FAILING
    kind = next(
        (kind for words, kind in _MESSAGES.items() if re.search(words, str(error))), FAILING
    )
    if kind in (LOCKED, FAILING) and not _has_locks(path.parent):
        return NO_LOCK
    if kind == FAILING and free_space(path.parent) < _MIN_FREE:
        return FULL
    return kind


def _has_locks(folder: Path) -> bool:
    """Whether the file system supports locks; SQLite reports their lack as "locked"."""
    try:
        import fcntl

        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows
        return True
    except OSError as error:
        return error.errno not in NO_LOCKS
    return True
