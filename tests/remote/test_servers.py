"""Checks of RPC servers before llama.cpp connects, and their errors."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localspec import ModelOptions, NativeError, ServerUnreachable, UsageError
from localspec.bench.child import free_port
from localspec.remote import servers
from localspec.remote.servers import lost, require_answering, trouble

pytestmark = pytest.mark.nightly

HELLO = bytes([14, 24, *[0] * 31])
ANSWER = bytes([28, *[0] * 7, 7, 0, 0, 0, *[0] * 24])
"""Size, version 7.0.0, and no capabilities (ggml-rpc.cpp: rpc_msg_hello_rsp)."""


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server on a local port that handles each connection by `serve`."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            serve(self.request)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_rpc_server_is_accepted() -> None:
    received: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        received.append(connection.recv(33))
        connection.sendall(ANSWER)

    with listening(serve) as address:
        assert trouble(address) is None
        require_answering([address])
    assert received[0] == HELLO, "as llama.cpp's own client"


def test_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "LIMIT", 0.1)
    with listening(lambda connection: connection.recv(1000) and connection.recv(1)) as address:
        found = trouble(address)
    assert found is not None
    assert "sends nothing" in found[0]
    assert "one client at a time" in found[1]


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_other_servers_are_refused(reply: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(reply)

    with listening(serve) as address, pytest.raises(ServerUnreachable) as raised:
        require_answering([address])
    told = f"{address} does not answer: the program there does not use this RPC protocol. Give the"
    assert told in str(raised.value)


def test_unknown_host() -> None:
    why, check = "there is no machine called nowhere.invalid", "Check the name in --rpc."
    assert trouble("nowhere.invalid:50052") == (why, check)


def test_lost_server_is_named() -> None:
    away = f"127.0.0.1:{free_port()}"
    with listening(lambda connection: connection.sendall(ANSWER)) as address:
        crashed = "Remote RPC server crashed or returned malformed response"
        gone, back = lost([address, away], crashed), lost([address], crashed)
        other = lost([address], "RPC handshake failed for 127.0.0.1:1")
        killed = lost([address], "")
        damaged = lost([address], "GGML_ASSERT(n > 0) failed (ggml.c)")
    assert f"The RPC server {away} was lost during a pass" in str(gone)
    assert "connection refused" in str(gone)
    assert f"The connection to the RPC servers {address} was lost, but they answer" in str(back)
    assert "another version" in str(other)
    assert "ended unexpectedly" in str(killed)
    for error in (gone, back, other, killed):
        assert isinstance(error, ServerUnreachable)
        assert "damaged" not in str(error), "it was not the file"
    assert isinstance(damaged, NativeError)
    assert "GGML_ASSERT(n > 0)" in str(damaged)


def test_addresses_are_parsed() -> None:
    addresses = ("one:1, two:2", "three:65535", "one:1")
    assert ModelOptions(rpc=addresses).rpc == ("one:1", "two:2", "three:65535")
    assert ModelOptions(rpc="one:1,two:2").rpc == ("one:1", "two:2")  # type: ignore[arg-type]
    assert ModelOptions(rpc=addresses).for_draft(64).rpc == (), "the draft model stays here"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        *(
            ({"rpc": (addresses,)}, "is not an address of an RPC server. Give HOST:PORT")
            for addresses in ("one", "one:", ":1", "one:0", "one:65536", "::1:5", "a:1,,b:2")
        ),
        ({"rpc": ("one:1",), "gpu_layers": 0}, "no layer would go to the RPC servers"),
        ({"rpc": tuple(f"one:{port}" for port in range(1, 18))}, "at most 16"),
    ],
)
def test_invalid_addresses_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        ModelOptions(**options)
