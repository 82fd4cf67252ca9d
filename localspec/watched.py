"""A shell that outlives this process, to say what this process cannot: that it is gone.

No handler of ours runs when a process is killed, or when native code ends it. So a shell of a
megabyte waits on a pipe that only this process holds open: at a word it ends in silence, at the end
of the pipe, or at any other line, it does what it was given.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import IO

_PATIENCE = 1.0
"""Seconds that a shell may take to end, before we go on without waiting for it."""


class Watch:
    """A running shell.

    Args:
        script: for `/bin/sh`. Its standard input is the pipe, where `read` gives it a line, or
            fails where this process is gone.
        output: a descriptor, the script's standard output.
        apart: whether it is in a session of its own: a terminal then lets it write whoever is in
            the foreground, and its keys do not reach it.

    Raises:
        OSError: there is no shell.
    """

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
        """Have it end in silence. May be called from a signal handler, and right before a process
        is left."""
        with suppress(OSError):
            os.write(self.pipe.fileno(), b"over\n")

    def close(self) -> None:
        """Release it, and wait for its end."""
        self.release()
        self.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(timeout=_PATIENCE)
