"""Other processes that compute while the benchmark runs."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

from localspec.errors import LocalspecError

MOST = 64

# The pipe ends with us, however we end, and the process with the pipe. Ctrl+C in a terminal is for
# us alone: the answer that it interrupts is still to be measured beside the others.
_PROGRAM = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
print("computing", flush=True)
number = 1
while True:
    number = number * 6364136223846793005 + 1442695040888963407 & 0xFFFFFFFFFFFFFFFF
"""


class Contention(ExitStack):
    """`count` processes, not pinned, that compute while it is entered; they die with this one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Contention:
        """Start them, and wait until they compute. Raises LocalspecError: the system refuses."""
        try:
            for _ in range(self._count):
                process = subprocess.Popen(
                    # -I and -S: nothing of the user's is loaded for it.
                    [sys.executable, "-I", "-S", "-c", _PROGRAM],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                self._processes.append(self.enter_context(process))
                self.callback(process.kill)
                assert process.stdout is not None
                if not process.stdout.readline():
                    raise OSError("it ended at once")
        except OSError as error:
            self.close()
            raise LocalspecError(
                f"A computing process cannot be started ({error.strerror or error}). "
                "Ask for fewer with --contention."
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None]

    @property
    def lost(self) -> int:
        return len(self._processes) - len(self.pids)
