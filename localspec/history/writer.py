"""Writes the history for a screen that must not wait for a disk."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field, replace
from types import TracebackType

from localspec.chat.conversation import Conversation, Message
from localspec.history.history import ConversationHeader, History

INTERVAL = 0.25
"""Seconds between two writes of an answer that grows. With the time until it is handed on again
(`localspec.tui.session.background_engine.KEEP_EVERY`) that is 0.65 s, and a disk may take a third
of a second until more than the last second of an answer is lost to a kill."""

logger = logging.getLogger("localspec.history.writer")


class HistoryWriter:
    """One thread that writes what it is told, in that order. Close it before the history.

    No method waits for the disk but `flush` and `close`, and none raises because of it. Messages
    are copied as they are told, so the caller may go on changing them.

    Args:
        history: where it writes. It is not closed along with this.
        on_trouble: told what the user should know, a sentence or two at a time: once for each
            kind of trouble until that is over, and when it is. It is called from the thread that
            writes, and at once for what was found when the history was opened.
        interval: seconds between two writes of an answer that grows.
    """

    def __init__(
        self,
        history: History,
        *,
        on_trouble: Callable[[str], None],
        interval: float = INTERVAL,
    ) -> None:
        self._history = history
        self._on_trouble = on_trouble
        self._interval = interval
        self._wake = threading.Condition()
        self._jobs: deque[_Job] = deque()
        # The newest state of each answer that grows, by id, oldest answer first.
        self._growing: dict[str, _Job] = {}
        self._removed: set[str] = set()
        self._due = 0.0
        self._busy = self._hurry = self._closing = False
        self._thread = threading.Thread(target=self._work, name="history-writer", daemon=True)
        self._thread.start()
        # A program that ends without closing it still has what it was told written.
        atexit.register(self.close)

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def sent(self, conversation: Conversation, message: Message) -> Future[bool]:
        """Write a message that the user sent, and the conversation it is in.

        Returns:
            Done when the message is safe: with True when it is on disk, a power cut included, with
            False when it is in memory only for now, which `on_trouble` was told.
        """
        return self._tell(_job(conversation, message))

    def streaming(self, conversation: Conversation | str, message: Message) -> None:
        """An answer has grown. Called as often as one likes; the newest state is written."""
        job = _job(conversation, message, growing=True)
        with self._wake:
            self._growing[message.id] = job
            self._wake.notify_all()

    def done(self, conversation: Conversation | str, message: Message) -> Future[bool]:
        """An answer has ended, however it did; returns as `sent` does."""
        job = _job(conversation, message)
        with self._wake:
            self._growing.pop(message.id, None)
        return self._tell(job)

    def saved(self, conversation: Conversation) -> Future[bool]:
        """Write what has changed but for messages: title, settings, tip; returns as `sent` does."""
        return self._tell(_job(conversation, None))

    def delete(self, ids: Iterable[str]) -> Future[int]:
        """Remove conversations; what is told of them later is not written.

        Returns:
            Done with how many there were, or with a HistoryError.
        """
        job = _Job(remove=tuple(ids), removed=Future())
        with self._wake:
            for id, growing in list(self._growing.items()):
                if growing.conversation in job.remove:
                    del self._growing[id]
        self._tell(job)
        return job.removed

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that was told is written, growing answers included.

        Args:
            timeout: seconds to wait at most.

        Returns:
            Whether all of it is on disk.
        """
        with self._wake:
            self._hurry = True
            self._wake.notify_all()
            idle = self._wake.wait_for(lambda: not self._has_work() or self._stopped(), timeout)
            self._hurry = False
        return idle and not self._history.behind

    def close(self, timeout: float | None = 10.0) -> bool:
        """Write all there is, and end; returns as `flush` does."""
        atexit.unregister(self.close)
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        written = self._history.catch_up(now=True)
        self._tell_trouble()
        return written

    def _tell(self, job: _Job) -> Future[bool]:
        with self._wake:
            if self._closing:
                job.end(False)
            else:
                self._jobs.append(job)
                self._wake.notify_all()
        return job.written

    def _work(self) -> None:
        self._tell_trouble()
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                job = self._next()
                if job is None:
                    return
                self._busy = True
            self._do(job)
            self._tell_trouble()

    def _next(self) -> _Job | None:
        """Wait for something to do; None when there will be nothing any more."""
        while True:
            now = time.monotonic()
            if self._jobs:
                return self._jobs.popleft()
            if self._growing and (now >= self._due or self._hurry or self._closing):
                if len(self._growing) == 1:
                    self._due = now + self._interval
                return self._growing.pop(next(iter(self._growing)))
            if self._closing:
                return None
            if self._growing:
                self._wake.wait(self._due - now)
            elif self._history.behind:
                if not self._wake.wait(self._history.retry):
                    return _Job(retry=True)
            else:
                self._wake.wait()

    def _do(self, job: _Job) -> None:
        try:
            if job.retry:
                self._history.catch_up()
            elif job.remove:
                count = self._history.delete(job.remove)
                self._removed.update(job.remove)
                job.removed.set_result(count)
            elif job.conversation in self._removed:
                job.end(False)
            else:
                written = self._history.put(
                    job.conversation,
                    header=job.header,
                    messages=job.messages,
                    everything=job.everything,
                )
                # Told before the future is done: who waits for it may ask what the trouble is.
                self._tell_trouble()
                job.end(written)
        except Exception as error:
            if job.remove:
                job.removed.set_exception(error)
            else:
                logger.exception("a message could not be written")
                self._on_trouble(f"The history could not be written: {error}.")
                job.end(False)

    def _tell_trouble(self) -> None:
        try:
            for text in self._history.take_notices():
                self._on_trouble(text)
        except Exception:
            logger.exception("trouble could not be told")

    def _has_work(self) -> bool:
        return bool(self._busy or self._jobs or self._growing)

    def _stopped(self) -> bool:
        return not self._thread.is_alive()


@dataclass(slots=True)
class _Job:
    """What to write: copies, nobody else's."""

    conversation: str = ""
    header: ConversationHeader | None = None
    messages: tuple[Message, ...] = ()
    everything: tuple[Message, ...] = ()
    retry: bool = False
    remove: tuple[str, ...] = ()
    written: Future[bool] = field(default_factory=Future)
    removed: Future[int] = field(default_factory=Future)

    def __post_init__(self) -> None:
        # Whoever waits may give up waiting; what was told is written nevertheless.
        self.written.set_running_or_notify_cancel()
        self.removed.set_running_or_notify_cancel()

    def end(self, written: bool) -> None:
        if not self.written.done():
            self.written.set_result(written)


def _job(
    conversation: Conversation | str, message: Message | None, *, growing: bool = False
) -> _Job:
    copies = () if message is None else (_copy(message, growing=growing),)
    if isinstance(conversation, str):
        return _Job(conversation, messages=copies)
    header = ConversationHeader.of(conversation)
    if growing:
        return _Job(conversation.id, header, copies)
    # Messages that are done do not change any more, and the one that is not is copied.
    everything = (
        *(each for each in conversation.messages.values() if each is not message),
        *copies,
    )
    return _Job(conversation.id, header, copies, everything)


def _copy(message: Message, *, growing: bool) -> Message:
    """A message as it is now. Of one that grows, figures are left out: they are written at its
    end, and to copy them each time would take longer than the rest."""
    return replace(
        message,
        stats=None if growing else deepcopy(message.stats),
        spans=None if message.spans is None else list(message.spans),
        attachments=list(message.attachments),
    )
