"""The history's file: how it is opened, and its tables.

    conversations   one row each; what is listed
    messages        one row each; `content` stays empty while an answer grows
    growth          the pieces of answers that grow; gone when they are done
    titles, words   the full-text index of titles and of messages, by the `seq` of their rows

`PRAGMA user_version` counts the migrations that a file has seen.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION = 0x6C737063
"""Says in the file's header whose it is: "lspc"."""

_NETWORKS = {
    *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "afpfs", "9p", "ncpfs", "webdav"),
    *("ceph", "glusterfs", "lustre", "beegfs", "gpfs", "fuse.sshfs", "fuse.rclone", "fuse.s3fs"),
}
"""File systems that other machines may write to: they do not share the memory that WAL needs."""

_STEP = 0.02
"""Seconds between two tries of what SQLite does not wait for itself."""


class NewerHistory(Exception):
    """The file was written by a version of localspec that came after this one."""


class ForeignFile(Exception):
    """The file is a database, and not one of localspec."""


def connect(
    path: Path, *, mode: Literal["rwc", "rw", "ro", "immutable"], patience: float, vfs: str = ""
) -> sqlite3.Connection:
    """Open a file; nothing in it is read yet.

    Args:
        path: the file.
        mode: "rwc" makes it, if it is not there; "immutable" reads it without any locks.
        patience: seconds to wait for others that write.
        vfs: how SQLite speaks to the system, if not as usual.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    query += f"&vfs={vfs}" if vfs else ""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=patience,
        isolation_level=None,
        # The history's locks see to it that one thread has it at a time.
        check_same_thread=False,
    )


def prepare(connection: sqlite3.Connection, path: Path, *, patience: float) -> None:
    """Make a fresh connection ready for writing: journal, durability, tables.

    Raises:
        sqlite3.Error: locked for longer than `patience`, read-only, damaged, no room.
        NewerHistory, ForeignFile: not ours to touch.
    """
    check(connection)
    if _version(connection) == 0:
        # Before the first table: afterwards it would take writing the file anew.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    wanted = "delete" if _on_network(path) else "wal"
    _set_journal(connection, wanted, patience)
    for pragma in (
        "synchronous = FULL",  # what is told to be kept survives a power cut, in WAL as well
        "fullfsync = ON",  # macOS: through the disk's own cache
        "checkpoint_fullfsync = ON",
        "secure_delete = ON",  # what is removed is gone from the file
        "journal_size_limit = 4194304",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if _version(connection) < len(MIGRATIONS):
        migrate(connection)
    else:
        _try_writing(connection, patience)


def check(connection: sqlite3.Connection) -> None:
    """Refuse what is not a history of this version or an older one; an empty file is fine.

    Raises:
        sqlite3.Error: locked, or no database at all.
        NewerHistory, ForeignFile: see there.
    """
    # In this order: another process may make the tables in between, and signs them as it does.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = _version(connection)
    if application != APPLICATION and (tables or application):
        raise ForeignFile
    if version > len(MIGRATIONS):
        raise NewerHistory


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date, in one transaction; the second of two processes finds it done.

    Raises:
        sqlite3.Error: nothing has changed then.
    """
    # Takes a fifth of a second (it brings numpy along), and is needed once per file.
    from sqlite_utils import Database, Migrations

    migrations = Migrations("localspec")
    for step in MIGRATIONS:
        migrations(name=step.__name__)(step)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) < len(MIGRATIONS):
            migrations.apply(Database(connection, recursive_triggers=False, execute_plugins=False))
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _tables(database: Database) -> None:
    database.table("conversations").create(
        {
            "seq": int,
            "id": str,
            "title": str,
            "titled_by": str,
            "created": float,
            "updated": float,
            "system": str,
            "sampling": str,
            "max_tokens": int,
            "model": str,
            "draft": str,
            "tip": str,
        },
        pk="seq",
        not_null={"id", "title", "titled_by", "created", "updated"},
    )
    database.table("conversations").create_index(["id"], unique=True)
    database.table("conversations").create_index(["updated"])
    database.table("messages").create(
        {
            "seq": int,
            "id": str,
            "conversation": str,
            "parent": str,
            "role": str,
            "created": float,
            "state": str,
            "model": str,
            "draft": str,
            "finish_reason": str,
            "writer": str,
            "stats": str,
            "spans": str,
            "attachments": str,
            # Last: whoever wants the columns before it need not read through it.
            "content": str,
        },
        pk="seq",
        not_null={"id", "conversation", "role", "created", "state", "content"},
    )
    database.table("messages").create_index(["id"], unique=True)
    database.table("messages").create_index(["conversation"])
    database.execute("CREATE INDEX messages_growing ON messages (seq) WHERE state = 'streaming'")
    database.table("growth").create(
        {"message": str, "at": int, "text": str, "spans": str},
        pk=("message", "at"),
        not_null={"text"},
    )
    create_index(database.conn)


def create_index(connection: sqlite3.Connection) -> None:
    """The full-text index, empty.

    It holds the text a second time: an index without it (`content=''`) could not forget a message
    in the SQLite versions that are about, and one over the messages' own text (`content=messages`)
    could not split ideographs.
    """
    for table in INDEX:
        connection.execute(
            f"CREATE VIRTUAL TABLE {table} USING fts5"
            "(text, tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3')"
        )


INDEX = ("titles", "words")
MIGRATIONS: tuple[Callable[[Database], None], ...] = (_tables,)
"""In order; a new one is added at the end, and none is ever changed."""


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _try_writing(connection: sqlite3.Connection, patience: float) -> None:
    """Find out now whether the file is read-only; who else writes just now does not matter."""
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # SQLite begins to write to a read-only file without a word; it is the first change
            # that it refuses.
            connection.execute(f"PRAGMA user_version = {_version(connection)}")
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
    connection.execute(f"PRAGMA busy_timeout = {round(1000 * patience)}")


def _set_journal(connection: sqlite3.Connection, wanted: str, patience: float) -> None:
    """Set how changes are kept apart until they are whole; what cannot be had stays as it is."""
    deadline = time.monotonic() + patience
    while True:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode == wanted:
            return
        try:
            connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
            return
        except sqlite3.OperationalError as error:
            # Another process that opens it just now is in the way, and SQLite does not wait here.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(_STEP)


def _on_network(path: Path) -> bool:
    # On Windows, SQLite's own locks hold on network drives, and asking for them may take long.
    if os.name != "posix":
        return False
    import psutil

    try:
        mounts = [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
        return file_system(path.resolve(), mounts) in _NETWORKS
    except (OSError, RuntimeError):
        return False


def file_system(path: Path, mounts: list[tuple[str, str]]) -> str:
    """The kind of the innermost of (mount point, kind) that a path is in, in lower case."""
    above = {str(path), *map(str, path.parents)}
    inside = [
        (len(point), kind) for point, kind in mounts if (point.rstrip(os.sep) or os.sep) in above
    ]
    return max(inside, default=(0, ""))[1].lower()
