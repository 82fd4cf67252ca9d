"""Setup of the terminal and the log for the app, and its keys and pasted text."""

import io
import logging
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from encodings.utf_8 import IncrementalDecoder
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from textual import constants, events
from textual._parser import Parser
from textual._xterm_parser import XTermParser
from textual.message import Message

from localspec import paths
from localspec.signals import HANGUPS, Watchdog

_RESTORE = (
    "\\033[<u"  # the keyboard protocol of the alternate screen
    "\\033[?1049l\\033[?7h"  # back from the alternate screen, and lines wrap
    "\\033[?25h"  # the cursor
    "\\033[?1000l\\033[?1002l\\033[?1003l\\033[?1006l\\033[?1015l\\033[?1016l"  # the mouse
    "\\033[?1004l\\033[?2004l\\033[?2048l"  # focus, paste and resize reports
    "\\033[0m"  # colours
)
# Short, because the terminal's line wrapping may be off.
_SENTENCE = "localspec ended suddenly. All messages are in the history: start it again."
# `stty` uses its standard input, which is the pipe here.
_SCRIPT = """
trap '' INT HUP TERM QUIT TSTP
read -r word || {{
stty sane <&1
printf '{restore}\\r\\n%s\\r\\nThe log is %s\\r\\n' '{sentence}' {log}
sed -n /GGML_ASSERT/p {log} | tail -n 1 | cut -c 1-200
}}
"""


def _screen() -> int:
    """The descriptor to draw on: standard error, or standard output if that is a file."""
    return 2 if os.isatty(2) else 1


_SWITCH_INTERVAL = 0.0005
"""Python's switch interval in seconds; the default of 5 ms would delay passes."""


def log_file() -> Path:
    """For native output and crashes of the app."""
    return paths.cache_folder() / "chat.log"


@contextmanager
def running_in_terminal() -> Iterator[None]:
    """Set up the process for the app, and restore it.

    Native code prints to standard error, which is the app's terminal, so it is redirected to a
    file. If this process does not exit cleanly, a shell restores the terminal, and prints
    llama.cpp's last assertion from the log.
    """
    log = log_file()
    for size in ("COLUMNS", "LINES"):  # if exported, they would override later sizes
        os.environ.pop(size, None)
    with suppress(ImportError):  # Windows
        driver: Any = import_module("textual.drivers.linux_driver")
        driver.XTermParser = KeyParser
        # Bytes that are not UTF-8 would end its thread.
        driver.getincrementaldecoder = lambda _: partial(_Decoder, "replace")
    with ExitStack() as stack:
        with suppress(OSError):  # no shell, so no Unix terminal either
            script = _SCRIPT.format(restore=_RESTORE, sentence=_SENTENCE, log=shlex.quote(str(log)))
            stack.callback(Watchdog(script, _screen(), apart=True).close)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(_SWITCH_INTERVAL)
        stack.enter_context(_redirect_native_output(log))
        yield


class _Decoder(IncrementalDecoder):
    """A decoder of what is typed, which ends the app with the terminal. The terminal's SIGHUP goes
    to the first program on it, which may keep it for itself."""

    def decode(self, data: Any, final: bool = False) -> str:
        if not data and not final:
            for number in HANGUPS:
                os.kill(os.getpid(), number)
            time.sleep(0.1)
        return super().decode(data, final)


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


_BEGIN, _END = "\x1b[200~", "\x1b[201~"
_CONTROL = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~])?|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_INCOMPLETE_KEY = re.compile(r"\x1b(\[[0-?]*|O)?\Z")
_UNTYPED = r"[\xa0\xad\u2000-\u200f\u202f\u205f-\u2064\u3000\U000e0020-\U000e007f]+"
_TYPED = re.compile(
    r"\x1b(?:\]\d+;[^\x07\x1b]*(?:\x07|\x1b\\)|P[01>!][^\x1b]*\x1b\\|\[M.{3})"  # reports
    r"|(?P<key>\x1b(?:\[(?:[0-?]+(?:[ -/]*[@-~]|\$)|[A-Za-d~]|\[[A-E])|O[A-DFHMP-S]"
    r"|[\t\r\x08\x7f]|(?:O[a-dj-y]|[bdf])(?![^\x00-\x1f\x7f])))"
    rf"|(?P<escape>\x1b)|(?P<pasted>[^\x00-\x1f\x7f]{{200,}}|{_UNTYPED})|(?P<letter>.)",
    re.DOTALL,
)
_WITH_ALT = {"\x1b\r": "\n", "\x1b\x08": "\x17", "\x1bd": "\x1b[3;5~"}
"""Keys with Alt that Textual does not know, and those that do the same in the input."""


class KeyParser(XTermParser):
    """A parser that fixes faults of Textual's. After an escape in pasted text it reads the rest as
    keys, Enter and Ctrl+Q included. Over a slow line it reads the rest of a key as text, and so
    what a terminal reports late, maybe to the program before. Of letters soon after Esc it makes
    keys with Alt, or `^`. A long text that arrives at once, as GNU screen pastes, takes
    milliseconds per letter. Wide spaces, joiners and the like are dropped if they are typed."""

    _pasting = False
    _kept = ""
    """The end of the last chunk that may belong to the end marker, or to a key."""
    _due = math.inf
    """When a kept escape is the key Esc, if no more arrives."""

    def feed(self, data: str) -> Iterator[Message]:
        if not data:  # the end of all input
            yield from super().feed(data)
            return
        if self._kept == "\x1b" and data[0] not in "[O" and not self._pasting:
            yield from self._keys(self._kept)
            self._kept = ""
        data, self._kept, self._due = self._kept + data, "", math.inf
        while data:
            pasted = self._pasting
            text, found, data = data.partition(_END if pasted else _BEGIN)
            start = text.rfind("\x1b")
            if pasted and not found and start >= 0 and _END.startswith(text[start:]):
                text, self._kept = text[:start], text[start:]
            elif not pasted and not found and (incomplete := _INCOMPLETE_KEY.search(text)):
                text, self._kept = text[: incomplete.start()], incomplete.group()
                if self._kept == "\x1b":
                    self._due = time.monotonic() + constants.ESCAPE_DELAY
            yield from self._fed(_CONTROL.sub("", text)) if pasted else self._keys(text)
            yield from self._fed(found)
            self._pasting = pasted != bool(found)

    def tick(self) -> Iterator[Message]:
        if time.monotonic() >= self._due:
            text, self._kept, self._due = self._kept, "", math.inf
            yield from self._keys(text)

    def _fed(self, text: str) -> Iterator[Message]:
        if text:
            yield from super().feed(text)

    def _keys(self, text: str) -> Iterator[Message]:
        """The keys of a text that was not pasted."""
        for found in _TYPED.finditer(text):
            typed = found[0]
            if found["escape"]:
                yield events.Key("escape", typed)
            elif found["pasted"]:
                yield from self._fed(f"{_BEGIN}{typed}{_END}")
            else:
                yield from self._fed(found["letter"] or _WITH_ALT.get(typed, found["key"] or ""))
            if self._timeout_time is not None:  # no key that Textual knows
                Parser.__init__(self)
