"""Opens and writes the history for a screen that must not wait for a disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from localspec.chat.conversation import Conversation, Message

if TYPE_CHECKING:
    # SQLite is not needed before the first paint.
    from localspec.history.history import ConversationHeader, History

T = TypeVar("T")

logger = logging.getLogger("localspec.history.writer")


class HistoryWriter:
    """One thread that opens the history, and writes what it is told in that order.

    No method waits for the disk but `flush` and `close`, and none raises because of it. Messages
    are copied as they are told, so the caller may go on changing them.

    Args:
        make: opens the history, when it is first needed.
        on_trouble: told what the user should know, a sentence or two at a time: once for each
            kind of trouble until that is over, and when it is. Called from the writing thread.
    """

    def __init__(self, make: Callable[[], History], *, on_trouble: Callable[[str], None]) -> None:
        self._on_trouble = on_trouble
        self._lock = threading.Lock()
        # The newest state of each answer that grows, by id.
        self._growing: dict[str, _Job] = {}
        self._removed: set[str] = set()
        self._retry: threading.Timer | None = None
        self._closed = False
        # At the end of the interpreter its thread does what was submitted before it ends.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._make = make
        self._opening = threading.Lock()
        self._history: History | None = None

    @property
    def history(self) -> History:
        """The history, to read from; opened where nobody has, which may take a while."""
        with self._opening:
            if self._history is None:
                self._history = self._make()
        return self._history

    def sent(self, conversation: Conversation, message: Message) -> Future[bool]:
        """Write a message that the user sent, and the conversation it is in.

        Returns:
            Done when the message is safe: with True when it is on disk, a power cut included, with
            False when it is in memory only for now, which `on_trouble` was told.
        """
        return self._put(conversation, message)

    def streaming(self, conversation: str, message: Message) -> None:
        """An answer has grown, in the conversation with that id. Where the disk is slow, only the
        newest state is written."""
        job = _Job(conversation, None, (_copy(message, growing=True),))
        with self._lock:
            waits = message.id in self._growing
            self._growing[message.id] = job
        if not waits:
            self._submit(lambda: self._grow(message.id), False)

    def done(self, conversation: Conversation, message: Message) -> Future[bool]:
        """An answer has ended, however it did; returns as `sent` does."""
        with self._lock:
            self._growing.pop(message.id, None)
        return self._put(conversation, message)

    def saved(self, conversation: Conversation) -> Future[bool]:
        """Write what has changed but for messages: title, settings, tip; returns as `sent` does."""
        return self._put(conversation, None)

    def delete(self, ids: Iterable[str]) -> Future[int]:
        """Remove conversations; what is told of them later is not written. Done with how many there
        were, or with a HistoryError."""
        chosen = tuple(ids)

        def delete() -> int:
            count = self.history.delete(chosen)
            self._removed.update(chosen)
            return count

        return self._submit(delete, 0)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait, `timeout` seconds at most, until all is written; whether it is on disk."""
        try:
            return self._submit(lambda: not self.history.behind, True).result(timeout)
        except FutureTimeout:
            return False

    def close(self, timeout: float | None = 10.0) -> bool:
        """Write all there is, and close the history; returns as `flush` does."""
        last = self._submit(self._finish, True)
        self._closed = True
        self._pool.shutdown(wait=False)
        try:
            return last.result(timeout)
        except FutureTimeout:
            return False

    def _finish(self) -> bool:
        if self._retry is not None:
            self._retry.cancel()
        if self._history is None:
            return True
        written = self.history.catch_up(now=True)
        self.history.close()
        return written

    def _put(self, conversation: Conversation, message: Message | None) -> Future[bool]:
        from localspec.history.rows import ConversationHeader

        header = ConversationHeader.of(conversation)
        if message is None:
            job = _Job(conversation.id, header)
        else:
            # Messages that are done do not change any more, and the one that is not is copied.
            copy = _copy(message)
            others = (m for m in conversation.messages.values() if m is not message)
            job = _Job(conversation.id, header, (copy,), (*others, copy))
        return self._submit(lambda: self._write(job), False)

    def _grow(self, message: str) -> bool:
        with self._lock:
            job = self._growing.pop(message, None)
        return job is not None and self._write(job)

    def _write(self, job: _Job) -> bool:
        if job.conversation in self._removed:
            return False
        try:
            return self.history.put(
                job.conversation,
                header=job.header,
                messages=job.messages,
                everything=job.everything,
            )
        except Exception as error:
            logger.exception("a message could not be written")
            self._tell(f"The history could not be written: {error}.")
            return False

    def _submit(self, work: Callable[[], T], closed: T) -> Future[T]:
        """Have the thread do something; `closed` is the result where it has ended."""
        result: Future[T] = Future()
        # Whoever waits may give up waiting; what was told is written nevertheless.
        result.set_running_or_notify_cancel()

        def run() -> None:
            try:
                found = work()
            except BaseException as error:
                self._tell_trouble()
                result.set_exception(error)
            else:
                # Told before the future is done: who waits for it may ask what the trouble is.
                self._tell_trouble()
                result.set_result(found)

        try:
            self._pool.submit(run)
        except RuntimeError:
            result.set_result(closed)
        return result

    def _tell_trouble(self) -> None:
        for text in self.history.take_notices():
            self._tell(text)
        if self.history.behind and not self._closed:
            if self._retry is not None:
                self._retry.cancel()
            self._retry = threading.Timer(
                self.history.retry, lambda: self._submit(self.history.catch_up, False)
            )
            self._retry.daemon = True
            self._retry.start()

    def _tell(self, text: str) -> None:
        try:
            self._on_trouble(text)
        except Exception:
            logger.exception("trouble could not be told")


@dataclass(frozen=True, slots=True)
class _Job:
    """What to write: copies, nobody else's."""

    conversation: str
    header: ConversationHeader | None
    messages: tuple[Message, ...] = ()
    everything: tuple[Message, ...] = ()


def _copy(message: Message, *, growing: bool = False) -> Message:
    """A message as it is now. Of one that grows, figures are left out: they are written at its
    end, and to copy them each time would take longer than the rest."""
    return replace(
        message,
        stats=None if growing else deepcopy(message.stats),
        spans=None if message.spans is None else list(message.spans),
        attachments=list(message.attachments),
    )
