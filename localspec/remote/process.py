"""The child process of a remote target, and its protocol over standard input and output.

Requests are (number of the context or None, method, arguments), pickled. Replies are any number of
("log", record), ("progress", values …) and ("last words", text), then ("done", value) or
("error", exception). Logits, and the flag that stops a pass, are in shared memory.
"""

import logging
import mmap
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Timer
from typing import IO, Any

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.llama import child_process
from localspec.llama.options import MAX_TREE
from localspec.remote.servers import lost

MOST_CONTEXTS = 8
FLAG = 2
"""Bytes of a context's flag: a string of one character, or none."""
_HEAD = 64
_FLOAT = 4


class SharedRows:
    """Shared memory. `reference`: the parent's, in the child.

    Attributes:
        rows: float32 [MAX_TREE + 1, width], of logits; they stay readable when it is closed.
        flags: uint8, by number of a context: 1 stops its pass.
        keep: file descriptors that the child process has to inherit.
    """

    def __init__(self, width: int, reference: str | None = None) -> None:
        self.width = width
        self._file: IO[bytes] | None = None
        size = _HEAD + (MAX_TREE + 1) * width * _FLOAT
        self.keep: tuple[int, ...] = ()
        if sys.platform == "win32":
            self.reference = reference or f"localspec-{os.getpid()}-{id(self)}"
            self.memory = mmap.mmap(-1, size, tagname=self.reference)
        else:
            if reference is None:
                # An unnamed file, so that nothing is left after a crash.
                folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
                self._file.truncate(size)
                reference = str(self._file.fileno())
            self.keep = (int(reference),)
            self.reference = reference
            self.memory = mmap.mmap(int(reference), size)
        self.flags = np.frombuffer(self.memory, np.uint8, _HEAD)[::FLAG]
        self.rows: Rows = np.frombuffer(self.memory, np.float32, offset=_HEAD).reshape(-1, width)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ChildProcess:
    """The child process of a target on these servers; `lost`: whether it has ended."""

    def __init__(self, servers: Sequence[str], shared: SharedRows) -> None:
        self._servers = servers
        level = logging.getLogger("localspec").getEffectiveLevel()
        self._process = child_process.start(
            "localspec.remote.child",
            *(shared.reference, str(shared.width), str(level)),
            keep=shared.keep,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._lock = Lock()  # two engines may share it, see `localspec.loading.second_engine`
        self._asked = 0  # calls so far
        self._waiting = False
        self.lost = False

    def call(
        self,
        number: int | None,
        name: str,
        *arguments: Any,
        progress: Callable[..., object] | None = None,
    ) -> Any:
        """Send a request, and wait for its result; errors of the child are raised here. An error in
        `progress` ends the child. Raises ServerUnreachable or NativeError if the child died."""
        words = ""
        try:
            with self._lock:
                if self.lost:
                    raise EOFError
                self._asked += 1
                self._waiting = True
                try:
                    pickle.dump((number, name, arguments), self._requests)
                    self._requests.flush()
                    while (answer := pickle.load(self._answers))[0] not in ("done", "error"):
                        kind, *values = answer
                        if kind == "last words":
                            (words,) = values
                        elif kind == "log":
                            logger = logging.getLogger(values[0].name)
                            if logger.isEnabledFor(values[0].levelno):
                                logger.handle(values[0])
                        elif progress is not None:
                            progress(*values)
                except BaseException:  # late replies must not reach the next call
                    self._end()
                    raise
                finally:
                    self._waiting = False
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            raise lost(self._servers, words) from None
        if answer[0] == "error":
            raise answer[1]
        return answer[1]

    def end_if_hanging(self, seconds: float) -> None:
        """Kill it if the current call lasts another `seconds`. Does not wait; from any thread."""
        asked = self._asked

        def check() -> None:
            if self._waiting and self._asked == asked:
                self._process.kill()  # the waiting call then raises

        timer = Timer(seconds, check)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        self.lost = True
        child_process.kill(self._process)
        for pipe in (self._requests, self._answers):
            with suppress(OSError):
                pipe.close()
