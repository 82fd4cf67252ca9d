"""Ctrl+C and SIGTERM while the model works."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from localspec.cli import crashes
from localspec.errors import Cancelled


@contextmanager
def on_interrupt(stop: Callable[[], None], restore: bytes = b"") -> Iterator[None]:
    """Call `stop` at the first interrupt; leave the process at the second.

    Nothing is raised: an exception could surface between any two statements.

    Args:
        stop: runs in a signal handler; may set flags and put into a SimpleQueue.
        restore: sent to standard output before the process is left.
    """
    interrupts = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts > 1:
            if restore:
                with suppress(OSError):
                    os.write(1, restore)
            with suppress(OSError):
                os.write(2, b"\n" if os.isatty(2) else b"")
            # The worker may be anywhere in native code. Everything printed was flushed.
            crashes.release()
            os._exit(Cancelled.exit_code)
        stop()

    with _handling((signal.SIGINT, signal.SIGTERM), handle):
        yield


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as SIGINT does."""
    with _handling((signal.SIGTERM,), signal.default_int_handler):
        yield


@contextmanager
def _handling(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    before = {
        number: signal.signal(number, handler)
        for number in numbers
        # A shell that starts a job in the background has it ignore Ctrl+C; leave that so.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
