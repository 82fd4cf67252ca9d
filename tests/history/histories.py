"""Conversations and histories for tests."""

import os
import random
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from localspec.chat.conversation import ASSISTANT, USER, Conversation, new_id
from localspec.history.history import History


def conversation_of(
    *texts: str, id: str | None = None, created: float | None = None
) -> Conversation:
    conversation = Conversation(id=id or new_id())
    for number, text in enumerate(texts):
        conversation.add(ASSISTANT if number % 2 else USER, text)
    if created is not None:
        conversation.created = conversation.updated = created
        for message in conversation.messages.values():
            message.created = created
    return conversation


def rows(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def put(history: History, conversation: Conversation) -> None:
    assert history.put(conversation, list(conversation.messages.values()))


def store(conversations: Iterable[Conversation], path: Path | None = None) -> None:
    """Write conversations to a history file, by default the user's."""
    with closing(History(path)) as history:
        for conversation in conversations:
            put(history, conversation)


def as_on_disk(history: History, conversation: Conversation) -> Conversation:
    """Read a conversation as another process would."""
    with closing(History(history.path)) as other:
        return other.load(conversation.id)


def fill(path: Path, count: int) -> None:
    """Write `count` conversations of four messages each, with ids from 0000… up."""
    said = "common words {}", "an answer to {}", "a common word", "another answer"
    made = (
        conversation_of(*(text.format(n) for text in said), id=f"{n:04}".ljust(32, "0"), created=n)
        for n in range(count)
    )
    store(made, path)


PATIENCE = 0.05
"""Seconds; long enough for what is not locked at all."""


def open_history(path: Path) -> History:
    """A history that does not wait for locks, and retries on every write."""
    return History(path, patience=PATIENCE, retry=0.0)


def notices(history: History) -> str:
    return "\n".join(history.take_notices())


def write_conversation(history: History, *texts: str, kept: bool = True) -> Conversation:
    """Write a conversation and return it. `kept`: whether it is on disk then, not only in memory;
    it is found in either case."""
    conversation = conversation_of(*texts)
    written = [history.put(conversation, messages) for messages in ([], *zip(conversation.path()))]
    assert all(written) is kept
    assert history.load(conversation.id) == conversation
    return conversation


def assert_holds(path: Path, *conversations: Conversation) -> None:
    """Assert that the file has exactly these conversations."""
    with closing(open_history(path)) as history:
        for conversation in conversations:
            assert history.load(conversation.id) == conversation
        assert history.count() == len(conversations)


@contextmanager
def without_root() -> Iterator[None]:
    """Drop root's rights, which ignore file modes."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


@contextmanager
def locked(path: Path, begin: str = "BEGIN EXCLUSIVE") -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(begin)
        other.execute("CREATE TABLE IF NOT EXISTS other (x)")
        yield
        other.execute("ROLLBACK" if other.in_transaction else "SELECT 1")


def damage(path: Path, how: str) -> None:
    if how == "index":  # of the titles
        rows(path, "DELETE FROM titles_config")
    data = bytearray(path.read_bytes())
    dice = random.Random(5)
    if how == "header":
        data[:100] = dice.randbytes(100)
    elif how == "text":
        data[:] = b"This is no database.\n" * 100
    elif how == "cut":
        del data[len(data) // 2 :]
    elif how == "middle":
        start = len(data) // 3
        data[start : start + 8 * 4096] = dice.randbytes(8 * 4096)
    elif how == "schema":
        data[100:4096] = dice.randbytes(3996)
    elif how == "undecodable":  # so that SQLite's message is no text either
        data[:] = data.replace(b"CREATE TABLE messages", b"CREATE \xffABLE messages")
    elif how == "everywhere":
        for page in range(30, len(data) // 4096, 7):  # the tables' roots are before these
            data[4096 * page : 4096 * page + 20] = dice.randbytes(20)
    path.write_bytes(data)


def files_set_aside(folder: Path) -> list[Path]:
    found = (file for file in folder.iterdir() if ".corrupt-" in file.name)
    return [file for file in found if not file.name.endswith(("-wal", "-shm"))]
