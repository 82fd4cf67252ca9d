"""The history's file: opening it, and its tables.

    conversations   one row each
    messages        one row each
    titles, words   full-text index of titles and messages, by the `seq` of their rows

`PRAGMA user_version` counts the migrations.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

FOREIGN, NEWER = "foreign", "newer"
APPLICATION = 0x6C737063
""""lspc" in the file's header."""

_INDEX = "USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2', prefix = '1 2 3')"
# The index stores the text a second time: a contentless one could not delete a message in current
# SQLite versions, and an external-content one could not split ideographs.
MIGRATIONS = (
    (
        "CREATE TABLE conversations (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, "
        "title TEXT NOT NULL, titled_by TEXT NOT NULL, created REAL NOT NULL, "
        "updated REAL NOT NULL, system TEXT, sampling TEXT, max_tokens INTEGER, model TEXT, "
        "draft TEXT, tip TEXT)",
        "CREATE UNIQUE INDEX idx_conversations_id ON conversations (id)",
        "CREATE INDEX idx_conversations_updated ON conversations (updated)",
        # `content` last: queries for the columns before it need not read it.
        "CREATE TABLE messages (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, "
        "conversation TEXT NOT NULL, parent TEXT, role TEXT NOT NULL, created REAL NOT NULL, "
        "state TEXT NOT NULL, model TEXT, draft TEXT, finish_reason TEXT, writer TEXT, "
        "stats TEXT, spans TEXT, attachments TEXT, content TEXT NOT NULL)",
        "CREATE UNIQUE INDEX idx_messages_id ON messages (id)",
        "CREATE INDEX idx_messages_conversation ON messages (conversation)",
        "CREATE INDEX messages_growing ON messages (seq) WHERE state = 'streaming'",
        "CREATE TABLE growth (message TEXT, at INTEGER, text TEXT NOT NULL, spans TEXT, "
        "PRIMARY KEY (message, at))",
        f"CREATE VIRTUAL TABLE titles {_INDEX}",
        f"CREATE VIRTUAL TABLE words {_INDEX}",
    ),
    (  # Streaming answers are written whole; they used to be stored in pieces.
        "UPDATE messages SET content = (SELECT group_concat(text, '') FROM "
        "(SELECT text FROM growth WHERE message = id ORDER BY at)) "
        "WHERE id IN (SELECT message FROM growth)",
        "DROP TABLE growth",
    ),
)
"""In order; new ones are appended, none is ever changed."""


class UnusableFile(Exception):
    """The file is another program's database, or from a later version of localspec: its argument
    is the kind, FOREIGN or NEWER."""


class _Connection(sqlite3.Connection):
    """Turns undecodable error messages, which quote a damaged schema, into DatabaseErrors."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        try:
            return super().execute(sql, parameters)
        except UnicodeDecodeError as error:
            raise sqlite3.DatabaseError("database schema is malformed") from error


def connect(
    path: Path, mode: Literal["rw", "ro", "immutable", "memory"], patience: float
) -> sqlite3.Connection:
    """Open an existing file, without reading it; "immutable" takes no locks, "memory" no file."""
    query = "mode=ro&immutable=1" if mode == "immutable" else f"mode={mode}"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{query}",
        uri=True,
        timeout=patience,
        factory=_Connection,
        isolation_level=None,
        # The history's locks ensure that one thread uses it at a time.
        check_same_thread=False,
    )
    # Damaged bytes are replaced, so that the rest stays readable.
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


def prepare(connection: sqlite3.Connection, patience: float) -> None:
    """Set up a connection for writing: journal, durability, tables. Raises sqlite3.Error if the
    file is locked for longer than `patience`, read-only or damaged, or the disk is full; and as
    `check` does."""
    check(connection)
    if _version(connection) == 0:
        # Before the first table: afterwards it would require VACUUM.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _use_wal(connection, patience)
    for pragma in (
        "synchronous = FULL",  # what was reported as written survives a power cut
        "fullfsync = ON",  # macOS: through the disk's own cache
        "checkpoint_fullfsync = ON",
        "secure_delete = ON",  # what is removed is gone from the file
        "journal_size_limit = 4194304",
    ):
        connection.execute(f"PRAGMA {pragma}")
    if _version(connection) < len(MIGRATIONS):
        migrate(connection)


def check(connection: sqlite3.Connection) -> None:
    """Raise UnusableFile unless the file is empty, or a history of this or an older version;
    sqlite3.Error if it is locked, or not a database."""
    # In this order: another process may create the tables, with their id, in between.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    version = _version(connection)
    if application != APPLICATION and (tables or application):
        raise UnusableFile(FOREIGN)
    if version > len(MIGRATIONS):
        raise UnusableFile(NEWER)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables up to date in one transaction."""
    with transaction(connection):
        for migration in MIGRATIONS[_version(connection) :]:
            for statement in migration:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make all changes of the block, or none."""
    # IMMEDIATE: a transaction that starts by reading cannot wait for a write lock later.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back automatically after some errors.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _use_wal(connection: sqlite3.Connection, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            connection.execute("PRAGMA journal_mode = wal").fetchone()
        except sqlite3.OperationalError as error:  # noqa: PERF203
            # Another process is opening it, and SQLite does not wait for that.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
