"""What could not be written yet, in memory."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from localspec.chat.conversation import Message
from localspec.history.rows import ConversationHeader
from localspec.history.schema import migrate
from localspec.history.statements import Statements

T = TypeVar("T")


class PendingWrites:
    """A store in memory, empty as long as all is well. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: Statements | None = None

    def __bool__(self) -> bool:
        return self._statements is not None

    def ask(self, question: Callable[[Statements], T]) -> T | None:
        """What the store says, None where there is none."""
        with self._lock:
            return None if self._statements is None else question(self._statements)

    def put(
        self,
        conversation: str,
        *,
        header: ConversationHeader | None,
        messages: Sequence[Message],
        everything: Sequence[Message],
    ) -> None:
        """Remember what the file did not take; see `Statements.put`."""
        with self._lock:
            if self._statements is None:
                connection = sqlite3.connect(
                    ":memory:", isolation_level=None, check_same_thread=False
                )
                migrate(connection)
                self._statements = Statements(connection)
            self._statements.put(
                conversation, header=header, messages=messages, everything=everything
            )

    def drain(self, write: Callable[[ConversationHeader, list[Message]], None]) -> None:
        """Hand everything over, one conversation at a time; what raises stays, with what follows.

        Nobody may `put` meanwhile.
        """
        for header in self.ask(Statements.headers) or ():
            write(header, self._messages(header.id))
            self.forget([header.id])
        self._drop()

    def forget(self, ids: Sequence[str]) -> None:
        """Drop conversations."""
        self.ask(lambda statements: statements.delete(ids))

    def _messages(self, conversation: str) -> list[Message]:
        return self.ask(lambda statements: statements.messages(conversation)) or []

    def close(self) -> None:
        """Drop everything."""
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            if self._statements is not None:
                self._statements.close()
                self._statements = None
