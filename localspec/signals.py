"""Signals that end a program."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANGUPS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()  # not on Windows
END_SIGNALS = (signal.SIGTERM, *HANGUPS)


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
