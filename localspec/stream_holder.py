"""The caches of an engine, held by one stream at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from localspec.errors import EngineBusy, UsageError
from localspec.llama import compute_thread
from localspec.stream import Holder, Stream

if TYPE_CHECKING:
    from localspec.llama.context import Context


class StreamHolder(Holder):
    """Lets streams in one after the other, and stops the one that is in.

    Args:
        lock: held while somebody uses the caches.
        contexts: the caches.
        wait: whether who comes meanwhile waits, instead of being told that the engine is busy.
        check: raises UsageError where the engine is closed.
        ended: called after the last step of a stream, the lock still held.
    """

    def __init__(
        self,
        lock: threading.Lock,
        contexts: Sequence[Context],
        *,
        wait: bool,
        check: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._lock, self._contexts, self._wait = lock, contexts, wait
        self._check, self._ended = check, ended
        self._state = threading.Lock()  # held while it is told, or asked, which stream is in
        self._active: Stream | None = None
        self._owner: int | None = None

    def acquire(self, stream: Stream) -> None:
        """Called by a stream before its first step."""
        # Only this thread could end the stream that it would wait for.
        if self._owner == threading.get_ident() and self._lock.locked():
            raise EngineBusy("This thread has another stream open. Finish or close that one first.")
        if not self._lock.acquire(blocking=self._wait):
            raise EngineBusy("Another generation is running. Wait for it, or cancel it.")
        try:
            self._check()
        except UsageError:
            self._lock.release()
            raise
        with self._state:
            self._owner, self._active = threading.get_ident(), stream
            for context in self._contexts:
                context.resume()

    def release(self, stream: Stream) -> None:
        """Called by a stream after its last step, however it ended."""
        with self._state:
            self._active = self._owner = None
        self._ended()
        compute_thread.rest()
        self._lock.release()

    def interrupt(self, stream: Stream) -> None:
        """Called by a stream that was cancelled."""
        with self._state:  # else it might be the next one that is stopped
            if self._active is stream:
                for context in self._contexts:
                    context.cancel()

    def stop(self) -> None:
        """Cancel the stream that is in, and end it if it is this thread's."""
        active = self._active
        if active is not None:
            active.cancel()
            if self._owner == threading.get_ident():
                active.close()
