"""A shell that acts when this process was killed, or native code ended it: it waits on a pipe that
only this process holds open. A word on the pipe ends it in silence."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import IO

_PATIENCE = 1.0  # seconds to wait for the end of a shell


class Watch:
    """A running shell. Raises OSError if there is none.

    Args:
        script: for `/bin/sh`. Its standard input is the pipe: `read` fails when this process is
            gone.
        output: a descriptor, the script's standard output.
        apart: whether it has a session of its own, which a terminal's keys do not reach.
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
        """Have it end in silence. A signal handler may call it."""
        with suppress(OSError):
            os.write(self.pipe.fileno(), b"over\n")

    def close(self) -> None:
        """Release it, and wait for its end."""
        self.release()
        self.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(timeout=_PATIENCE)
