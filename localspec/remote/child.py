"""The child process of `localspec.remote.process`: one model, its contexts, their passes."""

import ctypes
import logging
import os
import pickle
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from logging.handlers import QueueHandler
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any, BinaryIO

from localspec.llama import devices, library
from localspec.llama.context import Context
from localspec.llama.model import Model
from localspec.llama.options import Adapter, ModelOptions
from localspec.llama.sequences import shared_prefix
from localspec.remote.process import FLAG, SharedRows

FACTS = ("recurrent", "trained_context", "layers", "width", "output_width", "size", "kernels")
LIMITS = ("capacity", "recurrent", "restores", "max_leaves", "max_draft")
SILENCE = 20
"""Seconds until a silent connection is dropped."""


class Child:
    """Executes requests, and replies on `answers`; rows go to `shared`."""

    def __init__(self, answers: BinaryIO, shared: SharedRows) -> None:
        self._answers = answers
        self._lock = RLock()  # llama.cpp's threads log as well
        self._shared = shared
        self._model: Model | None = None
        self._contexts: dict[int, Context] = {}
        self._reported: dict[int, list[int]] = {}  # tokens reported to the parent
        self._progress = partial(self.send, "progress")

    def send(self, kind: str, *values: object) -> None:
        with self._lock:
            pickle.dump((kind, *values), self._answers)
            self._answers.flush()

    def execute(self, number: int | None, name: str, arguments: tuple[Any, ...]) -> Any:
        if number is None:
            return getattr(self, f"_{name}")(*arguments)
        context = self._contexts[number]
        if name == "extend":
            arguments = (*arguments, self._progress)
        value = getattr(context, name)(*arguments)
        if name in ("extend", "branch"):
            self._shared.rows[: len(value)] = value
            value = len(value)
        if name == "close":
            del self._contexts[number]
        return value, self._change(number, context)

    def _connect(self, servers: Sequence[str]) -> list[devices.Device]:
        library.start()
        library.add_rpc_servers(servers)
        return [device for device in devices.devices() if device.takes_layers]

    def _open(
        self, path: Path, options: ModelOptions, adapters: Sequence[Adapter]
    ) -> dict[str, Any]:
        def loading(fraction: float) -> None:
            if fraction == 0.0:
                enable_keepalive()
            self._progress(fraction)

        self._model = Model(path, options, progress=loading, adapters=adapters)
        enable_keepalive()
        return {name: getattr(self._model, name) for name in FACTS}

    def _context(self, number: int, options: ModelOptions) -> dict[str, Any]:
        assert self._model is not None
        if number in self._contexts:  # the parent gave up its prefill after a reconnection
            self._contexts[number].close()
        flag = (ctypes.c_char * FLAG).from_buffer(self._shared.memory, FLAG * number)
        context = Context.open(self._model, options, flag=flag)
        self._contexts[number], self._reported[number] = context, []
        return {name: getattr(context, name) for name in LIMITS}

    def _change(self, number: int, context: Context) -> tuple[int, list[int]]:
        reported, now = self._reported[number], context.tokens
        same = shared_prefix(reported, now)
        reported[same:] = rest = now[same:]
        return same, rest


def enable_keepalive() -> None:
    """Enable TCP keep-alive on all sockets, as llama.cpp would wait forever for a host that
    vanished. Its sockets are found by trying all descriptors."""
    if not hasattr(socket, "TCP_KEEPIDLE"):
        return
    for descriptor in range(3, 256):
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:
            continue  # not open, or not a socket
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE // 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE // 4)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENCE)
        connection.detach()  # it stays open


def main(reference: str, width: int, level: int) -> None:
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not get into the replies
    child = Child(answers, SharedRows(width, reference))
    logger = logging.getLogger("localspec")
    logger.setLevel(level)
    logger.addHandler(QueueHandler(SimpleNamespace(put_nowait=partial(child.send, "log"))))
    logger.propagate = False
    library.on_abort(lambda error: child.send("last words", str(error)))
    while True:
        try:
            number, name, arguments = pickle.load(requests)
        except EOFError:
            return  # the parent ended, or closed us
        try:
            child.send("done", child.execute(number, name, arguments))
        except BrokenPipeError:
            return
        except Exception as error:
            child.send("error", error)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
