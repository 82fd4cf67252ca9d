"""Restores the terminal if the chat ends without doing so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from localspec.watched import Watch

_RESTORE = (
    "\\033[?1049l"  # back from the alternate screen
    "\\033[?25h"  # the cursor
    "\\033[?1000l\\033[?1002l\\033[?1003l\\033[?1006l\\033[?1015l\\033[?1016l"  # the mouse
    "\\033[?1004l\\033[?2004l\\033[?2048l"  # focus, paste and resize reports
    "\\033[<u\\033[0m"  # the keyboard protocol, colours
)
# Short enough for every terminal: lines may not wrap any more.
_SENTENCE = "localspec ended suddenly. All messages are in the history: start it again."
# `stty` looks at its standard input, which is the pipe here.
_SCRIPT = f"""
trap '' INT HUP TERM QUIT TSTP
read -r word || {{ stty sane <&1; printf '{_RESTORE}\\r\\n%s\\r\\n' '{_SENTENCE}'; }}
"""


@contextmanager
def guarded_terminal(terminal: int) -> Iterator[None]:
    """Guard that terminal (a descriptor) until this process leaves in order."""
    try:
        watch = Watch(_SCRIPT, terminal, apart=True)
    except OSError:  # no shell: a system that has no such terminals either
        yield
        return
    try:
        yield
    finally:
        watch.close()
