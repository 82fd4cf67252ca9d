"""A TCP proxy on this machine that delays data in each direction, as a network link does."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter, sleep

_PIECE = 1 << 18


class DelayedLink:
    """Listens on a port (0: a free one) and forwards data `seconds` later."""

    def __init__(self, to: tuple[str, int], seconds: float, port: int = 0) -> None:
        self._to, self._seconds = to, seconds
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> DelayedLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cut all connections, and take no more."""
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(self._to)
            except OSError:
                here.close()
                continue
            self._open += [here, there]
            for one, other in ((here, there), (there, here)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pieces: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
                threading.Thread(target=self._take, args=(one, pieces), daemon=True).start()
                threading.Thread(target=self._give, args=(other, pieces), daemon=True).start()

    def _take(self, source: socket.socket, pieces: SimpleQueue[tuple[float, bytes]]) -> None:
        piece = b"."
        while piece:
            try:
                piece = source.recv(_PIECE)
            except OSError:
                piece = b""
            pieces.put((perf_counter() + self._seconds, piece))

    def _give(self, sink: socket.socket, pieces: SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, piece = pieces.get()
            left = due - perf_counter()
            if left > 0:
                sleep(left)
            try:
                if not piece:  # the other side has ended
                    sink.shutdown(socket.SHUT_RDWR)
                    return
                sink.sendall(piece)
            except OSError:
                return
