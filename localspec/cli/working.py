"""A verb that computes in the main thread: Ctrl+C, crashes and progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

from localspec.cli import crashes
from localspec.cli.interrupts import on_interrupt
from localspec.cli.output import Console
from localspec.errors import Cancelled


class Work:
    def __init__(self, console: Console) -> None:
        self._console = console
        self.stop = Event()

    def tell(self, text: str) -> None:
        """Show progress; KeyboardInterrupt after Ctrl+C.

        Not for callbacks of llama.cpp, in which the exception would be lost.
        """
        if self.stop.is_set():
            raise KeyboardInterrupt
        self._console.progress(text)


@contextmanager
def working(console: Console, interrupted: str) -> Iterator[Work]:
    """A KeyboardInterrupt inside becomes `Cancelled(interrupted)`.

    The first Ctrl+C only sets `stop`; the second leaves the process.
    """
    from localspec.llama import library

    crashes.watch()
    library.on_abort(console.last_words)
    work = Work(console)
    try:
        with on_interrupt(work.stop.set):
            yield work
    except KeyboardInterrupt:
        raise Cancelled(interrupted) from None
    finally:
        console.erase_progress()
