"""The history of all conversations, on disk, where every message is written as it comes.

Nothing that is wrong with the file stops a chat: what cannot be written is kept in memory, and
written once it can be. `History.take_notices` tells of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from localspec import paths
from localspec.chat.conversation import INTERRUPTED, Conversation, Message
from localspec.errors import HistoryError, LocalspecError, UsageError
from localspec.history.history_file import READING, WRITING, HistoryFile
from localspec.history.pending_writes import PendingWrites
from localspec.history.query import expression as as_expression
from localspec.history.rows import UNTITLED, ConversationHeader
from localspec.history.search import SearchHit, search
from localspec.history.statements import ConversationSummary, Statements
from localspec.history.trouble import Trouble
from localspec.retrieval import manifest as learned

__all__ = ["ConversationHeader", "ConversationSummary", "History", "SearchHit", "Trouble"]

T = TypeVar("T")

_SHORT = 0.2
"""Seconds to wait for others where that was in vain the last time."""

Forget = Callable[[Sequence[str]], object]
# Inside the class, `list` is the method.
Summaries = list[ConversationSummary]
Hits = list[SearchHit]
Messages = list[Message]
Strings = list[str]


class History:
    """The store. From any thread; reading never waits for writing.

    Opening takes some milliseconds, but seconds where another program keeps the file locked or
    where a damaged one is repaired: do it off the screen's thread.

    Attributes:
        path: the file.
        retry: seconds between two tries to write what could not be written.

    Args:
        path: the file, made if it is not there; None is `paths.history_file()`.
        repair: set a damaged file aside and begin anew; otherwise it is trouble like any other.
        patience: seconds to wait for other programs that write.
        retry: seconds between two tries to write what could not be written.
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
        self._pending = PendingWrites()
        self._closed = False
        self._file = HistoryFile(self.path, repairs=repair, patience=patience)

    def close(self) -> None:
        """Write what is still to be written, as far as that can be done now, and let go of it."""
        with self._writing:
            if self._closed:
                return
            if not self._drain(now=True):
                self._file.notices.append(f"Not everything could be kept in {self.path}.")
            self._closed = True
            self._file.close()
            self._pending.close()

    def take_notices(self) -> Strings:
        """What the user should be told since the last call, one or two sentences each."""
        found: Strings = []
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
        return bool(self._pending)

    # Reading

    def count(self) -> int:
        """How many conversations there are."""
        waiting = self._pending.ask(Statements.headers) or []

        def ask(statements: Statements) -> int:
            known = sum(statements.header(header.id) is not None for header in waiting)
            return statements.count() - known

        return (self._ask(ask) or 0) + len(waiting)

    def list(self, *, limit: int = 50, offset: int = 0) -> Summaries:
        """Conversations, newest first."""
        waiting = self._pending.ask(lambda statements: statements.summaries(-1, 0))
        if not waiting:
            return self._ask(lambda statements: statements.summaries(limit, offset)) or []

        def ask(statements: Statements) -> Summaries:
            return statements.summaries(offset + limit, 0) + [
                found for each in waiting if (found := statements.summary(each.id)) is not None
            ]

        merged = {summary.id: summary for summary in self._ask(ask) or []}
        for summary in waiting:
            merged[summary.id] = self._merged(summary, merged.get(summary.id))
        newest = sorted(merged.values(), key=lambda summary: summary.updated, reverse=True)
        return newest[offset : offset + limit]

    def search(self, query: str, *, limit: int = 50) -> Hits:
        """What has all words and "phrases" of a query; the last word may go on.

        Titles come first, then messages, both newest first, at most a few of one conversation.
        In the snippets, what was found has `query.MARK` before and `query.END` behind it; see
        `SearchHit.parts`.
        """
        expression = as_expression(query)
        if expression is None or limit < 1:
            return []
        waiting = (
            self._pending.ask(lambda statements: search(statements.connection, expression, limit))
            or []
        )
        known = {(hit.conversation, hit.message) for hit in waiting}
        found = self._ask(lambda statements: search(statements.connection, expression, limit)) or []
        found = waiting + [hit for hit in found if (hit.conversation, hit.message) not in known]
        return sorted(found, key=lambda hit: hit.message is not None)[:limit]

    def load(self, id: str) -> Conversation:
        """A whole conversation. An answer that a dead process left unfinished is interrupted.

        Raises:
            HistoryError: it is not there (any more), or the file cannot be read.
        """
        header, messages = None, {}
        failure: HistoryError | None = None
        try:
            header, found = self._read(
                lambda statements: (statements.header(id), statements.messages(id))
            )
            messages = {message.id: message for message in found}
            if any(message.state == INTERRUPTED for message in found):
                self._mark_interrupted(id, messages)
        except HistoryError as error:
            failure = error
        waiting = self._pending.ask(
            lambda statements: (statements.header(id), statements.messages(id))
        )
        if waiting is not None and waiting[0] is not None:
            if header is None or waiting[0].titled_by != UNTITLED:
                header = waiting[0]
            messages |= {message.id: message for message in waiting[1]}
        if header is None:
            raise failure or HistoryError(
                "The conversation is no longer in the history. Choose another one."
            )
        conversation = header.conversation(messages.values())
        # Killed in mid-answer, a chat had no time to say that the answer is what it shows.
        if conversation.tip is not None:
            conversation.select(conversation.tip)
        return conversation

    def recent_prompts(self, *, limit: int = 100) -> Strings:
        """What the user wrote last, oldest first."""
        found = self._ask(lambda statements: statements.recent_prompts(limit)) or []
        return (
            found + (self._pending.ask(lambda statements: statements.recent_prompts(limit)) or [])
        )[-limit:]

    def find(self, prefix: str) -> str:
        """The id of a conversation by what people type.

        Args:
            prefix: the beginning of an id; or a number: 1 is the newest conversation.

        Raises:
            UsageError: none is meant, or more than one.
            HistoryError: the file cannot be read.
        """
        prefix = prefix.strip().lower()
        if prefix.isascii() and prefix.isdigit() and 1 <= int(prefix) <= self.count():
            (found,) = self.list(limit=1, offset=int(prefix) - 1)
            return found.id

        def ask(statements: Statements) -> Strings:
            return statements.beginning_with(prefix, 3)

        ids: Strings = []
        if prefix:
            ids = sorted({*(self._pending.ask(ask) or ()), *self._read(ask)})
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

    def save(self, conversation: Conversation) -> bool:
        """Write all of a conversation but its messages: title, settings, tip.

        Returns:
            Whether it is on disk; if not, it is in memory, and written later.
        """
        return self.put(conversation.id, header=ConversationHeader.of(conversation))

    def write(self, message: Message, conversation_id: str) -> bool:
        """Insert or update a message; returns as `save` does.

        One that is streaming may be written again and again as it grows: only what is new of its
        text and spans goes to the disk, and figures only when it is done.
        """
        return self.put(conversation_id, messages=[message])

    def put(
        self,
        conversation_id: str,
        *,
        header: ConversationHeader | None = None,
        messages: Sequence[Message] = (),
        everything: Sequence[Message] = (),
    ) -> bool:
        """Several of these in one transaction; returns as `save` does.

        Args:
            conversation_id: whose they are.
            header: what `save` would write.
            messages: what `write` would write.
            everything: all messages; written if the conversation is gone from the file, because
                another program removed it.
        """
        with self._writing:
            if self._closed:
                return False
            if not self._pending:

                def write(statements: Statements) -> None:
                    statements.put(
                        conversation_id, header=header, messages=messages, everything=everything
                    )

                if self._file.write(write):
                    self._file.trouble_over(WRITING)
                    return True
                self._tried = time.monotonic()
            self._pending.put(
                conversation_id, header=header, messages=messages, everything=everything
            )
            return self._drain()

    def delete(self, ids: Iterable[str]) -> int:
        """Remove conversations, from what was learned and recorded too; returns how many there
        were.

        Raises:
            HistoryError: nothing could be removed from the file, or not from the others.
        """
        ids = tuple(ids)
        removed = 0
        with self._writing:
            self._drain()

            def remove(statements: Statements) -> None:
                nonlocal removed
                removed = statements.delete(ids)

            if not self._file.write(remove):
                on_disk = self._ask(lambda statements: [id for id in ids if statements.header(id)])
                if on_disk != [] and self.trouble is not None:
                    raise HistoryError(self.trouble.text)
            removed = max(
                removed, self._pending.ask(lambda statements: statements.delete(ids)) or 0
            )
        self._unlearn(ids)
        return removed

    def _unlearn(self, ids: Sequence[str]) -> None:
        from localspec.distill import chats
        from localspec.retrieval.learning import forget_conversations

        kept: list[tuple[str, Forget]] = [("recorded", chats.forget)]
        if learned.exist():
            kept.append(("learned", forget_conversations))
        problems = [(how, trouble) for how, forget in kept if (trouble := _trouble(forget, ids))]
        if problems:
            where = " Nor ".join(f"from what was {how}: {trouble}" for how, trouble in problems)
            raise HistoryError(f"The conversations are removed, but not {where}")

    def catch_up(self, *, now: bool = False) -> bool:
        """Try to write what waits in memory; True if nothing waits any more.

        Args:
            now: also if the last try is less than `retry` seconds ago.
        """
        with self._writing:
            return self._drain(now=now)

    # How either is done

    def _read(self, question: Callable[[Statements], T]) -> T:
        """Ask the file; raises HistoryError where it cannot be read."""
        found = self._file.read(question)
        self._file.trouble_over(READING)
        return found

    def _ask(self, question: Callable[[Statements], T]) -> T | None:
        """Ask the file; None where it cannot be read."""
        try:
            return self._read(question)
        except HistoryError:
            return None

    def _mark_interrupted(self, id: str, messages: dict[str, Message]) -> None:
        """Write that answers were interrupted, which nobody did who could have known."""
        rows = self._ask(lambda statements: statements.growing(id)) or ()
        left = [messages[each] for each in rows if messages[each].state == INTERRUPTED]
        if left:
            self.put(id, messages=left)

    def _drain(self, *, now: bool = False) -> bool:
        """Write what waits, if it is time to try."""
        if not self._pending:
            return True
        if not now and time.monotonic() - self._tried < self.retry:
            return False
        self._tried = time.monotonic()

        def write(header: ConversationHeader, messages: Messages) -> None:
            def put(statements: Statements) -> None:
                statements.put(header.id, header=header, messages=messages)

            if not self._file.write(put):
                raise _StillWrong

        try:
            with self._file.waiting(_SHORT) if not now else nullcontext():
                if not self._file.writable:
                    self._file.open()
                self._pending.drain(write)
        except _StillWrong:
            return False
        self._file.trouble_over(WRITING)
        return True

    def _merged(
        self, waiting: ConversationSummary, kept: ConversationSummary | None
    ) -> ConversationSummary:
        """A conversation of which a part is on disk."""
        if kept is None:
            return waiting
        ids = {*(self._pending.ask(lambda statements: statements.ids(waiting.id)) or ())}
        ids |= {*(self._ask(lambda statements: statements.ids(waiting.id)) or ())}
        header = self._pending.ask(lambda statements: statements.header(waiting.id))
        named = header is not None and header.titled_by != UNTITLED
        return ConversationSummary(
            id=waiting.id,
            title=waiting.title if named else kept.title,
            updated=max(waiting.updated, kept.updated),
            messages=len(ids),
            model=waiting.model if named else kept.model,
        )


class _StillWrong(Exception):
    """The file takes nothing yet."""


def _trouble(forget: Forget, ids: Sequence[str]) -> str | None:
    """Why conversations could not be forgotten, a sentence; None where they could."""
    try:
        forget(ids)
    except LocalspecError as error:
        return str(error)
    return None
