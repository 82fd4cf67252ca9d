"""The link that measurements go over changes nothing but the time."""

from __future__ import annotations

import socket
import threading

import pytest

from tools.delayed_link import DelayedLink

pytestmark = pytest.mark.nightly


def everything(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(1 << 16):
        found += piece
    return found


def test_bytes_arrive_as_they_were_sent() -> None:
    there, back = bytes(range(256)) * 4000, bytes(reversed(range(256))) * 1000
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as port:

        def serve() -> None:
            connection, _ = port.accept()
            with connection:
                while sum(map(len, heard)) < len(there):
                    heard.append(connection.recv(1 << 16))
                connection.sendall(back)

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            DelayedLink(("127.0.0.1", port.getsockname()[1]), 0.001) as link,
            socket.create_connection(("127.0.0.1", link.port)) as connection,
        ):
            connection.sendall(there)
            assert everything(connection) == back, "the end comes through as well"
        thread.join()
    assert b"".join(heard) == there
