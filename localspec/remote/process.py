"""A child process that has the remote target, and talks to us over its standard input and output.

We send (number of the context or None, what to do, arguments), pickled. It sends any number of
("log", name, level, text), ("progress", values …) and ("last words", text), then ("done", value) or
("error", exception). Logits come through memory that both have, and so does the flag that makes a
pass stop.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import subprocess
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
    """Memory of two processes: flags, and rows of `width` logits. `reference` names the other's."""

    def __init__(self, width: int, reference: str | None = None) -> None:
        self.width = width
        self._file: IO[bytes] | None = None
        size = _HEAD + (MAX_TREE + 1) * width * _FLOAT
        self.keep: tuple[int, ...] = ()
        """File descriptors that the other process has to inherit."""
        if sys.platform == "win32":
            self.reference = reference or f"localspec-{os.getpid()}-{id(self)}"
            self.memory = mmap.mmap(-1, size, tagname=self.reference)
        else:
            if reference is None:
                # Without a name, so that nothing is left of it however we end.
                folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
                self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
                self._file.truncate(size)
                reference = str(self._file.fileno())
            self.keep = (int(reference),)
            self.reference = reference
            self.memory = mmap.mmap(int(reference), size)

    def close(self) -> None:
        """Before it is dropped; rows that were given out stay readable."""
        if self._file is not None:
            self._file.close()

    def rows(self, count: int) -> Rows:
        """The first so many rows, float32 [count, width], a view."""
        flat = np.frombuffer(self.memory, np.float32, count * self.width, _HEAD)
        return flat.reshape(count, self.width)

    def set_flag(self, number: int, *, stop: bool) -> None:
        self.memory[FLAG * number] = int(stop)

    def flag(self, number: int) -> bool:
        return bool(self.memory[FLAG * number])


class ChildProcess:
    """Has a target on these servers; `lost` is whether it is no more."""

    def __init__(self, servers: Sequence[str], shared: SharedRows) -> None:
        self._servers = servers
        level = logging.getLogger("localspec").getEffectiveLevel()
        self._process = child_process.start(
            "localspec.remote.child",
            *(shared.reference, str(shared.width), str(level)),
            pipe=subprocess.PIPE,
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
        """Have something done, and wait for it; whatever the child raised comes out. What
        `progress` raises ends the child, and comes out. A ServerUnreachable or NativeError if the
        child died of it, or was dead before."""
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
                            name, level, text = values
                            logging.getLogger(name).log(level, "%s", text)
                        elif progress is not None:
                            progress(*values)
                except BaseException:  # what it would still say belongs to no later call
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
        """Kill it if the call that runs takes so much longer. Returns at once, in any thread."""
        asked = self._asked

        def look() -> None:
            if self._waiting and self._asked == asked:
                self._process.kill()  # who waits for it finds out

        timer = Timer(seconds, look)
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
