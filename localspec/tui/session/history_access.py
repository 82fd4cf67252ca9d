"""The history as the chat uses it: opened while the screen is up already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from localspec.chat.conversation import Conversation, Message
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    # SQLite is not needed before the first paint.
    from localspec.history.history import ConversationSummary, History, SearchHit
    from localspec.history.writer import HistoryWriter

PAGE = 100
"""Conversations that are listed at a time."""


class HistoryAccess:
    """Reads and writes conversations. What is written before `open` is done waits for it.

    Args:
        tell: called, in any thread, with a sentence about trouble.
        make: makes the store; None is the usual one.
    """

    def __init__(
        self, tell: Callable[[str], None], *, make: Callable[[], History] | None = None
    ) -> None:
        self._tell = tell
        self._make = make
        self._history: History | None = None
        self._writer: HistoryWriter | None = None
        self._lock = threading.Lock()
        self._waiting: list[Callable[[HistoryWriter], object]] = []

    def open(self) -> None:
        """Open the store; takes long where it is locked. `tell` is told what is wrong with it."""
        from localspec.history.history import History
        from localspec.history.writer import HistoryWriter

        history = (self._make or History)()
        writer = HistoryWriter(history, on_trouble=self._tell)
        with self._lock:
            self._history, self._writer = history, writer
            for write in self._waiting:
                write(writer)
            self._waiting.clear()

    def close(self) -> None:
        """Write what is still to be written."""
        if self._writer is not None:
            self._writer.close()
        if self._history is not None:
            self._history.close()

    # Writing; see `HistoryWriter`

    def sent(self, conversation: Conversation, message: Message) -> Future[bool]:
        """Done when the message is safe; see `HistoryWriter.sent`."""
        kept: Future[bool] = Future()

        def write(writer: HistoryWriter) -> None:
            writer.sent(conversation, message).add_done_callback(
                lambda written: kept.set_result(written.result())
            )

        self._write(write)
        return kept

    def streaming(self, conversation_id: str, message: Message) -> None:
        """The answer as it is now; written within half a second."""
        self._write(lambda writer: writer.streaming(conversation_id, message))

    def done(self, conversation_id: str, message: Message) -> None:
        """The answer is complete."""
        self._write(lambda writer: writer.done(conversation_id, message))

    def saved(self, conversation: Conversation) -> None:
        """Everything about a conversation but its messages."""
        self._write(lambda writer: writer.saved(conversation))

    def _write(self, write: Callable[[HistoryWriter], object]) -> None:
        with self._lock:
            if self._writer is None:
                self._waiting.append(write)
                return
        write(self._writer)

    # Reading; from a thread that may wait

    def list(self, offset: int = 0) -> Sequence[ConversationSummary]:
        """A page of conversations, newest first; what was written just now is among them."""
        if self._writer is not None:
            self._writer.flush(timeout=1.0)
        return [] if self._history is None else self._history.list(limit=PAGE, offset=offset)

    def search(self, query: str) -> Sequence[SearchHit]:
        """What has all these words."""
        return [] if self._history is None else self._history.search(query)

    def load(self, conversation: str) -> Conversation:
        """A whole conversation.

        Raises:
            LocalspecError: it is gone, or cannot be read.
        """
        return self._opened().load(conversation)

    def delete(self, conversation: str) -> Future[int]:
        """Remove a conversation, its answer that still comes included; see `HistoryWriter.delete`.

        Raises:
            LocalspecError: the history is not open yet.
        """
        self._opened()
        assert self._writer is not None
        return self._writer.delete([conversation])

    def sent_before(self) -> Sequence[str]:
        """What the user wrote lately, oldest first."""
        return [] if self._history is None else self._history.recent_prompts(limit=PAGE)

    def _opened(self) -> History:
        if self._history is None:
            raise LocalspecError("The history is still being opened. Try again in a moment.")
        return self._history
