"""Setup of the terminal and the log for the app, and detection of crashes."""

import io
import logging
import os
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.history.process import is_alive, this_process
from localspec.tui.key_parser import KeyParser
from localspec.watchdog import Watchdog

_RESTORE = (
    "\\033[?1049l"  # back from the alternate screen
    "\\033[?25h"  # the cursor
    "\\033[?1000l\\033[?1002l\\033[?1003l\\033[?1006l\\033[?1015l\\033[?1016l"  # the mouse
    "\\033[?1004l\\033[?2004l\\033[?2048l"  # focus, paste and resize reports
    "\\033[<u\\033[0m"  # the keyboard protocol, colours
)
# Short, because the terminal's line wrapping may be off.
_SENTENCE = "localspec ended suddenly. All messages are in the history: start it again."
# `stty` uses its standard input, which is the pipe here.
_SCRIPT = f"""
trap '' INT HUP TERM QUIT TSTP
read -r word || {{ stty sane <&1; printf '{_RESTORE}\\r\\n%s\\r\\n' '{_SENTENCE}'; }}
"""


def _screen() -> int:
    """The descriptor to draw on: standard error, or standard output if that is a file."""
    return 2 if os.isatty(2) else 1


@contextmanager
def guarded_terminal() -> Iterator[None]:
    """Restore the terminal if this process does not exit cleanly."""
    try:
        watch = Watchdog(_SCRIPT, _screen(), apart=True)
    except OSError:  # no shell, so no Unix terminal either
        yield
        return
    try:
        yield
    finally:
        watch.close()


_SWITCH_INTERVAL = 0.0005
"""Python's switch interval in seconds; the default of 5 ms would delay passes."""


def log_file() -> Path:
    """For native output and crashes of the app."""
    return paths.cache_folder() / "chat.log"


@contextmanager
def running_in_terminal() -> Iterator[list[str]]:
    """Set up the process for the app, and restore it; yields notices.

    Native code prints to standard error, which is the app's terminal, so it is redirected to a
    file. A mark beside that file lets the next start detect a crash.
    """
    folder = paths.cache_folder()
    log = log_file()
    mark = folder / f"chat-{os.getpid()}.running"
    notices = [text for text in (_crash_notice(folder, log),) if text]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        mark.write_text(this_process(), encoding="utf-8")
    for size in ("COLUMNS", "LINES"):  # if exported, they would override later sizes
        os.environ.pop(size, None)
    with suppress(ImportError):  # Windows
        driver: Any = import_module("textual.drivers.linux_driver")
        driver.XTermParser = KeyParser
        # Bytes that are not UTF-8 would end its thread.
        driver.getincrementaldecoder = lambda name: partial(getincrementaldecoder(name), "replace")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        with guarded_terminal(), _redirect_native_output(log):
            yield notices
    finally:
        sys.setswitchinterval(interval)
        with suppress(OSError):
            mark.unlink(missing_ok=True)


def _crash_notice(folder: Path, log: Path) -> str | None:
    ended = []
    with suppress(OSError):
        for mark in folder.glob("chat-*.running"):
            if not is_alive(mark.read_text(encoding="utf-8", errors="replace")):
                ended.append(mark)
                mark.unlink(missing_ok=True)
    if not ended:
        return None
    assertion = ""
    with suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        assertion = next((line.strip() for line in reversed(lines) if "GGML_ASSERT" in line), "")
    cause = f" The last message of llama.cpp: {assertion[:200]}" if assertion else ""
    return (
        "localspec ended suddenly last time; all messages until then are in the history."
        f"{cause} (log: {log})"
    )


class _TerminalStream(io.TextIOWrapper):
    """A stream that ignores errors of a closed terminal, where SIGHUP ends the app. An error would
    end Textual's writer thread; its queue would fill up and block the app."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


@contextmanager
def _redirect_native_output(log: Path) -> Iterator[None]:
    """Redirect descriptor 2 to a file; the app draws through a copy of it."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        file = os.open(os.devnull, os.O_WRONLY)
    errors, terminal = os.dup(2), os.fdopen(os.dup(_screen()), "wb")
    drawn_on = _TerminalStream(terminal, encoding="utf-8", errors="replace")
    before = sys.__stderr__
    handler = logging.StreamHandler(os.fdopen(os.dup(file), "w", encoding="utf-8"))
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("localspec")
    os.dup2(file, 2)
    os.close(file)
    sys.__stderr__ = drawn_on  # type: ignore[misc]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with suppress(OSError):  # a full disk
            handler.stream.close()
        sys.__stderr__ = before  # type: ignore[misc]
        drawn_on.flush()
        os.dup2(errors, 2)
        os.close(errors)
        with suppress(OSError):
            drawn_on.close()
