"""Ctrl+C, crashes and progress of verbs that run a model."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from localspec.cli import crashes
from localspec.cli.output import Console
from localspec.errors import Cancelled, NativeError
from localspec.signals import END_SIGNALS, HANGUPS, handle_signals

if TYPE_CHECKING:
    from localspec import Engine, Stream
    from localspec.cli.request import OpeningOptions


class Work:
    """A task in the main thread; passes run in another, so signals are handled at once. `restore`:
    sent to the terminal before an exit at once, or a crash; `stopped`: Ctrl+C was pressed;
    `writing`: progress would erase a part of standard output."""

    def __init__(self, console: Console, restore: bytes = b"") -> None:
        self.console, self._restore = console, restore
        self.stopped = self.writing = False
        self._running: tuple[Stream, ...] = ()

    def report(self, text: str) -> None:
        """Show progress; raises KeyboardInterrupt after Ctrl+C. Do not call it from callbacks of
        llama.cpp, which would lose the exception."""
        if self.stopped:
            raise KeyboardInterrupt
        self.console.progress(text)

    def load(self, opening: OpeningOptions) -> Engine:
        """Load the models and print notices; raises as `localspec.load`, and as `report`."""
        from localspec.self_draft.recipe import is_self

        what = "loading the model"
        if is_self(opening.draft):
            what += " (finding a draft in its own file takes some minutes, once)"
        self.report(what)
        engine = opening.load(lambda done: self.report(f"{what}: {done:.0%}" if done else what))
        self.console.notices(engine.notices)
        return engine

    @contextmanager
    def cancelling(self, *running: Stream) -> Iterator[None]:
        """Cancel these streams on Ctrl+C, even if it was pressed before."""
        self._running = running
        try:
            if self.stopped:
                self._stop()
            yield
        finally:
            self._running = ()

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        """The signal handler: stop as soon as possible; at the second interrupt, exit at once.
        Raises nothing, since an exception could interrupt any statement."""
        if not self.stopped:
            self._stop()
        elif number not in HANGUPS:  # of which a closing terminal may send several
            with suppress(OSError):
                os.write(1, self._restore)
            with suppress(OSError):
                os.write(2, b"\n" if os.isatty(2) else b"")
            # A pass may be running in native code. All output was flushed.
            crashes.release()
            os._exit(Cancelled.exit_code)

    def _stop(self) -> None:
        self.stopped = True
        for stream in self._running:
            stream.cancel()
        if not self.writing:
            with suppress(RuntimeError):  # it interrupted a write on the same stream
                self.console.progress("stopping; press Ctrl+C again to exit at once", at_once=True)


@contextmanager
def working(
    console: Console,
    interrupted: str,
    *,
    failed: Callable[[NativeError], object] = lambda error: None,
    restore: bytes = b"",
) -> Iterator[Work]:
    """Run a task; a KeyboardInterrupt in the block becomes `Cancelled(interrupted)`. `failed` is
    called before the process ends if llama.cpp aborts; for `restore` see `Work`."""
    from localspec.llama import library

    over = False

    def abort(error: NativeError) -> None:
        if not over:
            failed(error)
            console.exit_with(error)

    crashes.watch(restore)
    library.on_abort(abort)
    work = Work(console, restore)
    try:
        with handle_signals((signal.SIGINT, *END_SIGNALS), work.interrupt):
            yield work
    except KeyboardInterrupt:
        raise Cancelled(interrupted) from None
    finally:
        over = True
        console.erase_progress()
