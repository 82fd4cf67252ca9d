"""Opens and writes the history for a screen that must not wait for a disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from localspec.chat.conversation import STREAMING, Conversation, Message

if TYPE_CHECKING:
    # SQLite is not needed before the first paint.
    from localspec.history.history import History

T = TypeVar("T")

logger = logging.getLogger("localspec.history.writer")


class HistoryWriter:
    """One thread that opens the history, by `make` when first needed, and writes in order. Only
    `flush` and `close` wait for the disk; no method raises because of it. Messages are copied.
    `on_trouble` is called in that thread with sentences for the user, once for each kind of trouble
    and at its end."""

    def __init__(self, make: Callable[[], History], *, on_trouble: Callable[[str], object]) -> None:
        self._on_trouble = on_trouble
        self._lock = threading.Lock()
        # To write the newest state of each answer that grows, by id.
        self._growing: dict[str, Callable[[], bool]] = {}
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
        """The history to read from; opening it may take a while."""
        with self._opening:
            if self._history is None:
                self._history = self._make()
        return self._history

    @property
    def rescued(self) -> Sequence[Path]:
        """Files of what the history did not take, once it is closed."""
        return [] if self._history is None else self._history.rescued

    def streaming(self, conversation: Conversation, message: Message) -> None:
        """An answer has grown; on a slow disk only its newest state is written."""
        write = self._change(conversation, message)
        with self._lock:
            waits = message.id in self._growing
            self._growing[message.id] = write
        if not waits:
            self._submit(lambda: self._grow(message.id), False)

    def put(self, conversation: Conversation, message: Message | None = None) -> Future[bool]:
        """Write title, settings and tip, and a message that is sent or an answer that has ended.
        Done with True when it is on disk, power cuts included; with False when it is in memory
        only, which `on_trouble` was told."""
        if message is not None:
            with self._lock:
                self._growing.pop(message.id, None)
        return self._submit(self._change(conversation, message), False)

    def _change(self, conversation: Conversation, message: Message | None) -> Callable[[], bool]:
        """To write the conversation and message as they are now."""
        # Messages that are done do not change any more, and the one that is not is copied.
        changed = {} if message is None else {message.id: _copy(message)}
        messages = {m.id: changed.get(m.id, m) for m in list(conversation.messages.values())}
        now = replace(conversation, messages=messages, _children={})
        return partial(self._write, now, tuple(changed.values()))

    def delete(self, ids: Iterable[str]) -> Future[int]:
        """Remove conversations and ignore them later. Done with their count, or HistoryError."""
        chosen = tuple(ids)

        def delete() -> int:
            count = self.history.delete(chosen)
            self._removed.update(chosen)
            return count

        return self._submit(delete, 0)

    def flush(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until all is written; whether it is on disk."""
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

    def _grow(self, message: str) -> bool:
        with self._lock:
            write = self._growing.pop(message, None)
        return write is not None and write()

    def _write(self, conversation: Conversation, messages: Sequence[Message]) -> bool:
        if conversation.id in self._removed:
            return False
        try:
            return self.history.put(conversation, messages)
        except Exception as error:
            logger.exception("a message could not be written")
            self._tell(f"The history could not be written: {error}.")
            return False

    def _submit(self, work: Callable[[], T], closed: T) -> Future[T]:
        """Run `work` in the thread; `closed` is the result after its end.

        Do not cancel the future: its work is done even if nobody waits for it.
        """

        def run() -> T:
            try:
                return work()
            finally:
                # Told before the future is done: who waits for it may ask what the trouble is.
                self._tell_trouble()

        try:
            return self._pool.submit(run)
        except RuntimeError:
            result: Future[T] = Future()
            result.set_result(closed)
            return result

    def _tell_trouble(self) -> None:
        for text in self.history.take_notices():
            self._tell(text)
        if self.history.waiting and not self._closed:
            if self._retry is not None:
                self._retry.cancel()
            self._retry = threading.Timer(
                self.history.retry, lambda: self._submit(self.history.drain, False)
            )
            self._retry.daemon = True
            self._retry.start()

    def _tell(self, text: str) -> None:
        try:
            self._on_trouble(text)
        except Exception:
            logger.exception("trouble could not be told")


def _copy(message: Message) -> Message:
    """A message as it is now; without figures while it grows, as copying takes long."""
    return replace(
        message,
        stats=None if message.state == STREAMING else deepcopy(message.stats),
        spans=None if message.spans is None else list(message.spans),
        attachments=list(message.attachments),
    )
