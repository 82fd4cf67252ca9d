"""Writing the history from a background thread, so that the screen never waits for a disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localspec.chat.conversation import Conversation, Message

if TYPE_CHECKING:
    # SQLite is not needed before the first paint.
    from localspec.history.history import History

T = TypeVar("T")

logger = logging.getLogger("localspec.history.writer")


class HistoryWriter:
    """A thread that opens the history with `make` on first use, and writes in order. Only `flush`
    and `close` wait for the disk; disk errors never raise. What is written is the state at that
    time: values of fields are replaced, never changed in place. `on_trouble` is called in that
    thread with sentences for the user, once when each kind of trouble begins and once when it
    ends."""

    def __init__(self, make: Callable[[], History], *, on_trouble: Callable[[str], object]) -> None:
        self._on_trouble = on_trouble
        self._growing: Future[bool] | None = None  # the last write of an unfinished answer
        self._removed: set[str] = set()
        self._retry: threading.Timer | None = None
        self._closed = False
        # At interpreter exit the pool still runs what was submitted.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="history-writer")
        self._make = make
        self._open_lock = threading.Lock()
        self._history: History | None = None

    @property
    def history(self) -> History:
        """The history to read from; opening it may take a while."""
        with self._open_lock:
            if self._history is None:
                self._history = self._make()
        return self._history

    @property
    def rescued(self) -> Sequence[Path]:
        """Files with the conversations that the history could not store, once it is closed."""
        return [] if self._history is None else self._history.rescued

    def streaming(self, conversation: Conversation, message: Message) -> None:
        """Write a growing answer; on a slow disk only its newest state is written."""
        if self._growing is None or self._growing.done():
            self._growing = self.put(conversation, message)

    def put(self, conversation: Conversation, message: Message | None = None) -> Future[bool]:
        """Write title, settings and tip, and a sent message or a finished answer.
        The result is True once it is on disk, safe from power cuts; False if it is in memory only,
        which `on_trouble` has reported."""
        return self._submit(partial(self._write, conversation, message), False)

    def delete(self, ids: Iterable[str]) -> Future[int]:
        """Remove conversations and ignore later writes to them. The result is their count; it fails
        with a HistoryError."""
        chosen = tuple(ids)

        def delete() -> int:
            count = self.history.remove(chosen)
            self._removed.update(chosen)
            self.history.forget(chosen)
            return count

        return self._submit(delete, 0)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds for pending writes; returns whether all are on disk."""
        try:
            return self._submit(lambda: not self.history.waiting, True).result(timeout)
        except FutureTimeout:
            return False

    def close(self, timeout: float | None = 10.0) -> bool:
        """Write everything and close the history; returns as `flush` does."""
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
        return self.history.close()

    def _write(self, conversation: Conversation, message: Message | None) -> bool:
        if conversation.id in self._removed:
            return False
        try:
            return self.history.put(conversation, [] if message is None else [message])
        except Exception as error:
            logger.exception("a message could not be written")
            self._on_trouble(f"The history could not be written: {error}.")
            return False

    def _submit(self, work: Callable[[], T], closed: T) -> Future[T]:
        """Run `work` in the thread; after `close` the result is `closed`.

        Do not cancel the future: the work must be done even if nothing waits for it.
        """

        def run() -> T:
            try:
                return work()
            finally:
                # Before the future is done: its waiters may ask for the trouble.
                self._report_trouble()

        try:
            return self._pool.submit(run)
        except RuntimeError:
            result: Future[T] = Future()
            result.set_result(closed)
            return result

    def _report_trouble(self) -> None:
        history = self._history
        if history is None:  # it was never opened
            return
        for text in history.take_notices():
            self._on_trouble(text)
        if history.waiting and not self._closed:
            if self._retry is not None:
                self._retry.cancel()
            self._retry = threading.Timer(history.retry, lambda: self._submit(history.drain, False))
            self._retry.daemon = True
            self._retry.start()
