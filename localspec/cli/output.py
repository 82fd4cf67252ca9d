"""Console output: answers on standard output, everything else on standard error."""

import dataclasses
import errno
import io
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Timer
from time import perf_counter
from typing import Any, NoReturn, TextIO

from localspec.cli import crashes
from localspec.errors import Cancelled, LocalspecError, UsageError, describe
from localspec.text import harmless, printable

_LEVELS = {1: logging.INFO, 2: logging.DEBUG}
_AGAIN = "Run it again with -v, and report the output."
_REPORT = "Please report it, with these lines:"
_QUIET_SECONDS = 0.3
"""Delay before progress is shown, to avoid flicker."""
_LONG_SECONDS = 1.0
_REDRAW_SECONDS = 0.2
"""Minimum time between redraws, which take CPU time from the model."""


class OutputLost(LocalspecError):
    """Standard output cannot be written any more."""


class ReaderGone(OutputLost):
    """The reader closed standard output, as `head` does. No message is printed."""

    exit_code = 141


class Console:
    """The two output streams; one per process. `command`: as typed; `json`: print results as JSON;
    `quiet`: print only answers and errors; `verbosity`: 1 adds the log, 2 also its details; both
    add tracebacks of internal errors, as does None: the verb has no -v."""

    def __init__(self, command: str = "localspec") -> None:
        self.command = command
        self.json = self.quiet = False
        self.verbosity: int | None = None
        _occupy_standard_descriptors()
        for stream in (sys.stdin, sys.stdout, sys.stderr):  # others may leave them non-blocking
            with suppress(AttributeError, OSError, ValueError):  # Windows has no such pipes
                os.set_blocking(stream.fileno(), True)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="replace")
        if isinstance(sys.stderr, io.TextIOWrapper):
            sys.stderr.reconfigure(errors="replace")
        self._due: float | None = None
        self._shown = False

    def configure(self, *, json: bool = False, quiet: bool, verbosity: int | None) -> None:
        self.json, self.quiet, self.verbosity = json, quiet, verbosity
        logger = logging.getLogger("localspec")
        logger.handlers = [LogToConsole(self)] if verbosity else [logging.NullHandler()]
        if verbosity:
            logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))

    @property
    def closed(self) -> bool:
        """Whether the process was started without standard output."""
        return sys.stdout is None

    @property
    def shows_progress(self) -> bool:
        return self._redraws(sys.stderr)

    @property
    def draws(self) -> bool:
        """Whether a full-screen display can be drawn on standard output."""
        return self._redraws(sys.stdout)

    def answer(self, text: str) -> None:
        """Print and flush a part of the answer; raises OutputLost if it cannot be written."""
        self.erase_progress()
        try:
            sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
        except OSError as error:
            _discard(sys.stdout)
            raise output_error(error) from None

    def answer_json(self, value: Any) -> None:
        """Print a value as JSON; it may contain dataclasses and paths."""
        text = json.dumps(value, ensure_ascii=False, default=_json_value)
        if not text.isprintable():  # terminal control characters, or a file name that is not UTF-8
            text = json.dumps(value, default=_json_value)
        self.answer(text + "\n")

    def result(self, record: Any, text: str, nothing: str = "") -> None:
        """Print the record with --json, else the text, or the note `nothing` instead of none."""
        if self.json:
            self.answer_json(record)
        elif text:
            self.answer(text)
        else:
            self.notice(nothing)

    def done(self, record: Any, sentence: str) -> None:
        """Report a completed action: the record with --json, else a sentence on standard error."""
        if self.json:
            self.answer_json(record)
        else:
            self.say(sentence)

    def finish(self) -> None:
        """Flush standard output."""
        self.answer("")

    def say(self, text: str, *, dim: bool = False, end: str = "\n") -> None:
        """Print lines on standard error."""
        self.erase_progress()
        if sys.stderr.isatty():
            text = harmless(text)
            if dim and not os.environ.get("NO_COLOR") and _can_redraw():
                text = f"\x1b[2m{text}\x1b[0m"
        self._write_error(text + end)

    def confirm(self, items: Iterable[str], question: str) -> bool:
        """List items and ask for confirmation. Raises UsageError without a terminal, and Cancelled
        on Ctrl+C."""
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(
                "Deleting needs a confirmation, and this is not a terminal. Add --yes to delete "
                "without asking."
            )
        for line in items:
            self.say(f"  {line}")
        self.erase_progress()
        self._write_error(f"{question} [y/N] ")
        try:
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            raise Cancelled("Interrupted. Nothing was removed.") from None
        return answer.strip().lower() in ("y", "yes")

    def notice(self, text: str) -> None:
        """Print a note, unless quiet."""
        if not self.quiet:
            self.say(f"localspec: note: {' '.join(text.splitlines())}")

    def notices(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.notice(text)

    def error(self, error: BaseException) -> int:
        """Print an error message; returns the exit code."""
        sentence, code = describe(error, _AGAIN if self.verbosity == 0 else _REPORT)
        if isinstance(error, Cancelled) and sys.stderr.isatty() and _can_redraw():
            self._write_error("\r\x1b[K")  # erase the ^C that the terminal echoes
        if not isinstance(error, ReaderGone):
            self.say(f"localspec: {' '.join(sentence.splitlines())}")  # for odd file names
        if sentence.endswith(_REPORT) or (self.verbosity and not isinstance(error, LocalspecError)):
            self.say("".join(traceback.format_exception(error)).rstrip())
        return code

    def exit_with(self, error: BaseException) -> NoReturn:
        """Print an error and exit at once; for `localspec.llama.library.on_abort`."""
        code = self.error(error)
        crashes.release()
        os._exit(code)

    def progress(self, text: str, *, at_once: bool = False) -> None:
        """Show progress in one line, which is redrawn."""
        if not self.shows_progress:
            return
        now = perf_counter()
        if self._due is None:
            self._due = now + _QUIET_SECONDS
        if now >= self._due or at_once:
            self._due, self._shown = now + _REDRAW_SECONDS, True
            # A line that wraps could not be erased.
            width = shutil.get_terminal_size().columns - 1
            self._write_error(f"\r\x1b[K{harmless(text)[:width]}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Show that standard input is being read, if that takes long and it is not a terminal: of a
        container or a program that never closes it, the log would show nothing."""
        text = "reading standard input until it ends; < /dev/null skips it"
        line = partial(self.progress, at_once=True) if self.shows_progress else self.notice
        timer = Timer(_LONG_SECONDS, line, [text])
        timer.daemon = True
        if sys.stdin is not None and not sys.stdin.isatty():
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _redraws(self, stream: TextIO) -> bool:
        # Log lines would interrupt what is redrawn.
        return not self.quiet and not self.verbosity and stream.isatty() and _can_redraw()

    def erase_progress(self) -> None:
        if self._shown:
            self._write_error("\r\x1b[K")
        self._due, self._shown = None, False

    def _write_error(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:  # standard error is closed as well
            _discard(sys.stderr)


class LogToConsole(logging.Handler):
    """Log handler that prints single lines without control characters, which servers may send."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage(), 1000)
        self._console.say(f"{record.levelname} {record.name}: {text}")
        if record.exc_info and record.exc_info[1]:
            self._console.say("".join(traceback.format_exception(record.exc_info[1])).rstrip())


def output_error(error: OSError) -> OutputLost:
    """The exception for a failed write to standard output."""
    if isinstance(error, BrokenPipeError):
        return ReaderGone("Standard output was closed (broken pipe).")
    code = errno.errorcode.get(error.errno or 0, "unknown error")
    return OutputLost(
        f"Standard output cannot be written: {error.strerror} ({code}). "
        "Free some space, or redirect it elsewhere."
    )


def _json_value(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else dataclasses.asdict(value)


def _discard(stream: TextIO) -> None:
    """Redirect a broken stream to the null device, because the interpreter flushes it at exit."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _occupy_standard_descriptors() -> None:
    """Open closed standard descriptors: native code writes to 0, 1 and 2, which files opened later
    would otherwise get."""
    if sys.stderr is None:
        nothing = os.open(os.devnull, os.O_RDWR)
        while nothing < 2:
            nothing = os.open(os.devnull, os.O_RDWR)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace", closefd=False)


def _can_redraw() -> bool:
    return os.environ.get("TERM") != "dumb"
