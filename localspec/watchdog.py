"""A shell that acts if this process is killed, or ended by native code. It waits on a pipe that
only this process holds open. A line on the pipe ends it without action."""

import os
import subprocess
from contextlib import suppress
from typing import IO

_PATIENCE = 1.0  # seconds to wait for the end of a shell


class Watchdog:
    """A running shell. Raises OSError if it cannot be started.

    Args:
        script: for `/bin/sh`. Its standard input is the pipe: `read` fails when this process is
            gone.
        output: a descriptor, the script's standard output.
        apart: whether it runs in a new session, out of reach of the terminal's signals.
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
        """End it without action. Safe in a signal handler."""
        with suppress(OSError):
            os.write(self.pipe.fileno(), b"over\n")

    def close(self) -> None:
        """Release it, and wait until it ends."""
        self.release()
        self.pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._shell.wait(timeout=_PATIENCE)
