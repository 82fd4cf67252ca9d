"""Conversations and stores to test with."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from localspec.chat.conversation import ASSISTANT, USER, Conversation, new_id
from localspec.chat.history import History
from localspec.chat.records import Header


def conversation_of(
    *texts: str, id: str | None = None, created: float | None = None
) -> Conversation:
    """One whose messages take turns, the user first."""
    conversation = Conversation(id=id or new_id())
    for number, text in enumerate(texts):
        conversation.add(ASSISTANT if number % 2 else USER, text)
    if created is not None:
        conversation.created = conversation.updated = created
        for message in conversation.messages.values():
            message.created = created
    return conversation


def rows(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """What SQLite itself says about a file."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def fill(path: Path, count: int) -> None:
    """A store with that many conversations of four messages each, ids 0000… and up."""
    history = History(path)
    for number in range(count):
        conversation = conversation_of(
            f"common words {number}",
            f"an answer to {number}",
            "a common word",
            "another answer",
            id=f"{number:04}".ljust(32, "0"),
            created=float(number),
        )
        messages = list(conversation.messages.values())
        assert history.put(conversation.id, header=Header.of(conversation), messages=messages)
    history.close()


def steps_of(path: Path, count: int, question: Callable[[History], object]) -> int:
    """How many steps of SQLite's machine a question takes, of a store of that many."""
    fill(path, count)
    history = History(path)
    question(history)  # what is read once per connection is not meant
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    disk = history._keeper._disk
    assert disk is not None
    disk.reader.connection.set_progress_handler(step, 1)
    question(history)
    disk.reader.connection.set_progress_handler(None, 1)
    history.close()
    assert steps
    return steps
