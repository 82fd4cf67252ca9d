"""Puts the terminal back in order if the chat vanishes without doing so.

No handler runs when a process is killed, or when native code aborts it; what is left behind is a
terminal in which nothing that one types can be seen. So a shell of a megabyte waits on a pipe that
only the chat holds open: at a word it ends in silence, at the end of the pipe it restores.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_RESTORE = (
    "\\033[?1049l"  # back from the alternate screen
    "\\033[?25h"  # the cursor
    "\\033[?1000l\\033[?1002l\\033[?1003l\\033[?1006l\\033[?1015l\\033[?1016l"  # the mouse
    "\\033[?1004l\\033[?2004l\\033[?2048l"  # focus, paste and resize reports
    "\\033[<u\\033[0m"  # the keyboard protocol, colours
)
# Short enough for every terminal: lines may not wrap any more.
_SENTENCE = "localspec ended suddenly. What was said is in the history: start it again."
# `stty` looks at its standard input, which is the pipe here.
_SCRIPT = f"""
trap '' INT HUP TERM QUIT TSTP
read -r word || {{ stty sane <&1; printf '{_RESTORE}\\r\\n%s\\r\\n' '{_SENTENCE}'; }}
"""


@contextmanager
def guarded_terminal(terminal: int) -> Iterator[None]:
    """Watch over this process until it leaves in order.

    Args:
        terminal: a descriptor of the terminal.
    """
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=subprocess.DEVNULL,
            # In a session of its own the terminal lets it write, whoever is in the foreground.
            start_new_session=True,
        )
    except OSError:  # no shell: a system that has no such terminals either
        yield
        return
    try:
        yield
    finally:
        assert guard.stdin is not None
        with suppress(OSError):
            os.write(guard.stdin.fileno(), b"over\n")
        guard.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(timeout=1.0)
