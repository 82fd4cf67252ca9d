"""Signals that end a program, and a shell that acts if it is killed, or ended by native code."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any

HANGUPS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # not on Windows
END_SIGNALS = (signal.SIGTERM, *HANGUPS)
_PATIENCE = 1.0  # seconds to wait for the end of a shell


@contextmanager
def handle_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], Any]
) -> Iterator[None]:
    """Handle these signals within the block, except those that are ignored."""
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        # Shells make background jobs ignore Ctrl+C; keep that.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Deliver Ctrl+C and END_SIGNALS at the end of the block. Inside it their exceptions would be
    lost, or end the process, as in imports that catch all errors. Does nothing outside of the main
    thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    with handle_signals((signal.SIGINT, *END_SIGNALS), lambda number, _: came.append(number)):
        yield
    for number in came[:1]:
        signal.raise_signal(number)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP, with the exit code that shells report for it."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with handle_signals(END_SIGNALS, leave):
        yield


class Watchdog:
    """A shell whose standard input is a pipe that only this process holds open, so that `read`
    fails when it is gone. A line on the pipe ends it without action. `output`: a descriptor for the
    script; `apart`: whether it runs in a new session, out of reach of the terminal's signals.
    Raises OSError if it cannot be started."""

    def __init__(self, script: str, output: int, *, apart: bool) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            start_new_session=apart,
        )
        assert self._shell.stdin is not None
        self.pipe: IO[bytes] = self._shell.stdin

    def release(self) -> None:
        """End it without action. Safe in a signal handler."""
        with suppress(OSError):
            os.write(self.pipe.fileno(), b"over\n")

    def close(self) -> None:
        """Release it, and wait until it ends."""
        self.release()
        self.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(timeout=_PATIENCE)
