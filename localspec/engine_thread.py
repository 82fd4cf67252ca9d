"""A thread of its own for an engine: a native pass would block a screen and signal handlers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

from localspec.errors import Cancelled

Task = Callable[[], object]
Failure = Callable[[BaseException], object]


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class EngineThread(threading.Thread):
    """Does tasks in the order in which they were submitted, and can cancel them. One thread submits
    and cancels, its signal handlers included: they could wait for a lock in vain."""

    def __init__(self, name: str) -> None:
        self._tasks: SimpleQueue[tuple[int, Task, Failure] | None] = SimpleQueue()
        # Tasks are numbered, and a cancellation reaches all that were submitted before it.
        self._submitted = self._running = self._cancelled = 0
        self._cancellable: Cancellable | None = None
        # A daemon, so that no failure of the main thread could leave the process hanging on it.
        super().__init__(name=name, daemon=True)

    def submit(self, task: Task, *, failed: Failure) -> None:
        """Queue a task; `failed` is called in the thread with whatever it raises."""
        self._submitted += 1
        self._tasks.put((self._submitted, task, failed))

    def cancel(self) -> None:
        """Cancel the task that runs, and all that were submitted up to now."""
        self._cancelled = self._submitted
        running = self._cancellable
        if running is not None:
            running.cancel()

    def finish(self) -> None:
        """End when all that was submitted is done."""
        self._tasks.put(None)

    # For the task that runs

    @property
    def cancelled(self) -> bool:
        """Whether the task that runs is to stop."""
        return self._running <= self._cancelled

    def require_going_on(self, otherwise: str) -> None:
        """Raise Cancelled, which says `otherwise`, if the task that runs is cancelled."""
        if self.cancelled:
            raise Cancelled(otherwise)

    @contextmanager
    def cancels(self, stream: Cancellable) -> Iterator[None]:
        """Let a cancellation reach a stream, also one that came before."""
        # In this order: a cancellation before the assignment is seen below, one after it reaches
        # the stream itself.
        self._cancellable = stream
        try:
            if self.cancelled:
                stream.cancel()
            yield
        finally:
            self._cancellable = None

    def run(self) -> None:
        while (submitted := self._tasks.get()) is not None:
            self._running, task, failed = submitted
            try:
                task()
            except BaseException as error:  # none may end the thread, or be lost with it
                failed(error)
