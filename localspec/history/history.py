"""All conversations on disk, where every message is written as it comes.

Trouble with the file stops no chat: what cannot be written is kept in memory and written later.
`History.take_notices` tells of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from localspec import paths
from localspec.chat.conversation import INTERRUPTED, Conversation, Message
from localspec.errors import HistoryError, LocalspecError, UsageError
from localspec.history.history_file import HistoryFile
from localspec.history.rows import ConversationHeader
from localspec.history.schema import in_memory
from localspec.history.search import SearchHit, search
from localspec.history.search import expression as as_expression
from localspec.history.statements import ConversationSummary, Statements
from localspec.history.trouble import Trouble

__all__ = ["ConversationHeader", "ConversationSummary", "History", "SearchHit", "Trouble"]

T = TypeVar("T")

_SHORT = 0.2
"""Seconds to wait for others after waiting in vain."""


class History:
    """The store, for any thread; reading never waits for writing. From a write that fails until it
    can be made up for, a copy in memory takes the file's place. Opening takes milliseconds, but
    seconds for a locked or damaged file.

    `path`: by default `paths.history_file()`, created if missing; `repair`: set a damaged file
    aside and begin a new one, else that is trouble like any other; `patience`: seconds to wait for
    other programs that write; `retry`: seconds between two tries to write what could not be
    written.
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
        self.retry = retry
        self._tried = 0.0
        # So that what waits is written before what comes after it.
        self._writing = threading.RLock()
        self._waiting: set[str] = set()  # conversations that memory has more of than the file
        self._memory: Statements | None = None
        self._remembering = threading.RLock()
        self._closed = False
        self._file = HistoryFile(self.path, repairs=repair, patience=patience)

    def close(self) -> None:
        """Write what still can be written, and close the file."""
        with self._writing:
            if self._closed:
                return
            if not self._drain(now=True):
                self._file.notices.append(f"Not everything could be kept in {self.path}.")
            self._closed = True
            self._file.close()
            self._forget_all()

    def take_notices(self) -> Sequence[str]:
        """Sentences for the user since the last call."""
        found = []
        with suppress(IndexError):
            while True:
                found.append(self._file.notices.pop(0))
        return found

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing is kept on disk now; None where all is well."""
        return self._file.trouble

    @property
    def behind(self) -> bool:
        """Whether something waits in memory to be written."""
        return bool(self._waiting)

    # Reading

    def count(self) -> int:
        return self._ask(Statements.count) or 0

    def list(self, *, limit: int = 50, offset: int = 0) -> Sequence[ConversationSummary]:
        """Conversations, newest first."""
        return self._ask(lambda statements: statements.summaries(limit, offset)) or []

    def search(self, query: str, *, limit: int = 50) -> Sequence[SearchHit]:
        """Hits for all words and "phrases" of a query, whose last word may be incomplete: titles,
        then messages, newest first, a few of each conversation."""
        expression = as_expression(query)
        if expression is None or limit < 1:
            return []
        return self._ask(lambda statements: search(statements.connection, expression, limit)) or []

    def load(self, id: str) -> Conversation:
        """A whole conversation; an answer of a dead process is interrupted. A HistoryError if it is
        not there, or the file cannot be read."""
        header, messages = self._read(
            lambda statements: (statements.header(id), statements.messages(id))
        )
        if header is None:
            raise HistoryError("The conversation is no longer in the history. Choose another one.")
        if not self._waiting and any(message.state == INTERRUPTED for message in messages):
            self._file.write(Statements.mark_interrupted)
        conversation = header.conversation(messages)
        # Killed in mid-answer, a chat had no time to say that the answer is what it shows.
        if conversation.tip is not None:
            conversation.select(conversation.tip)
        return conversation

    def recent_prompts(self, *, limit: int = 100) -> Sequence[str]:
        """The user's last messages, oldest first."""
        return self._ask(lambda statements: statements.recent_prompts(limit)) or []

    def find(self, prefix: str) -> str:
        """The id of a conversation, by its beginning or by number: 1 is the newest. A UsageError if
        none, or more than one, has it; a HistoryError if the file cannot be read."""
        prefix = prefix.strip().lower()
        if prefix.isascii() and prefix.isdigit() and 1 <= int(prefix) <= self.count():
            (found,) = self.list(limit=1, offset=int(prefix) - 1)
            return found.id
        ids = self._read(lambda statements: statements.beginning_with(prefix, 3)) if prefix else []
        if not ids:
            raise UsageError(
                f"There is no conversation '{prefix}'. `localspec history list` shows all."
            )
        if len(ids) > 1 and ids[0] != prefix:
            raise UsageError(
                f"'{prefix}' may be several conversations: {', '.join(id[:12] for id in ids)} … "
                "Type more characters of the id."
            )
        return ids[0]

    # Writing

    def put(
        self,
        conversation_id: str,
        *,
        header: ConversationHeader | None = None,
        messages: Sequence[Message] = (),
        everything: Sequence[Message] = (),
    ) -> bool:
        """Insert or update a conversation's header, None leaves it as it is, and messages, in one
        transaction; returns whether they are on disk, not only in memory. `everything`: all
        messages, for a conversation that another program removed."""

        def write(statements: Statements) -> None:
            statements.put(conversation_id, header=header, messages=messages, everything=everything)

        with self._writing:
            if self._closed:
                return False
            if not self._waiting:
                if self._file.write(write):
                    return True
                self._tried = time.monotonic()
            self._remember(conversation_id, write)
            return self._drain()

    def delete(self, ids: Iterable[str]) -> int:
        """Remove conversations, also from what was learned and recorded; returns how many. A
        HistoryError if not all of it could be removed."""
        ids = tuple(ids)
        removed = 0
        with self._writing:
            self._drain()

            def remove(statements: Statements) -> None:
                nonlocal removed
                removed = statements.delete(ids)

            if not self._file.write(remove):
                try:
                    kept = self._file.read(lambda file: [id for id in ids if file.header(id)])
                except HistoryError:
                    kept = list(ids)
                if kept and self.trouble is not None:
                    raise HistoryError(self.trouble.text)
            if self._memory is not None:
                removed = max(removed, self._memory.delete(ids))
                self._waiting.difference_update(ids)
        self._forget(ids)
        return removed

    def _forget(self, ids: Sequence[str]) -> None:
        from localspec.distill import chats
        from localspec.retrieval import manifest
        from localspec.retrieval.learning import forget_conversations

        problems = []
        try:
            chats.forget(ids)
        except LocalspecError as error:
            problems.append(f"from what was recorded: {error}")
        try:
            if manifest.exist():
                forget_conversations(ids)
        except LocalspecError as error:
            problems.append(f"from what was learned: {error}")
        if problems:
            raise HistoryError(f"The conversations are removed, but not {' Nor '.join(problems)}")

    def catch_up(self, *, now: bool = False) -> bool:
        """Write what waits in memory, if `now` or after `retry` seconds; whether nothing waits."""
        with self._writing:
            return self._drain(now=now)

    # How either is done

    def _read(self, question: Callable[[Statements], T]) -> T:
        """Ask the memory, or the file; HistoryError where that cannot be read."""
        with self._remembering:
            if self._memory is not None:
                return question(self._memory)
        return self._file.read(question)

    def _ask(self, question: Callable[[Statements], T]) -> T | None:
        """The same; None where the file cannot be read."""
        try:
            return self._read(question)
        except HistoryError:
            return None

    def _remember(self, id: str, change: Callable[[Statements], None]) -> None:
        """Change a conversation in memory, which begins with what the file has."""
        with self._remembering:
            if self._memory is None:
                memory = in_memory()
                with suppress(HistoryError):
                    self._file.read(lambda statements: statements.connection.backup(memory))
                self._memory = Statements(memory)
            change(self._memory)
            self._waiting.add(id)

    def _forget_all(self) -> None:
        with self._remembering:
            self._waiting.clear()
            if self._memory is not None:
                self._memory.close()
                self._memory = None

    def _drain(self, *, now: bool = False) -> bool:
        """Write what waits, if it is time to try."""
        if self._memory is None:
            return True
        if not now and time.monotonic() - self._tried < self.retry:
            return False
        self._tried = time.monotonic()
        if not self._file.writable:
            self._file.open()
        for id in tuple(self._waiting):
            with self._remembering:
                header, messages = self._memory.header(id), self._memory.messages(id)

            def put(
                file: Statements,
                id: str = id,
                header: ConversationHeader | None = header,
                messages: Sequence[Message] = messages,
            ) -> None:
                file.put(id, header=header, messages=messages)

            if not self._file.write(put, None if now else _SHORT):
                return False
            self._waiting.discard(id)
        self._forget_all()
        return True
