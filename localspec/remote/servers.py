"""Checks of llama.cpp's RPC servers before llama.cpp connects to them."""

import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from localspec.errors import LocalspecError, NativeError, ServerUnreachable

LIMIT = 5.0

# ggml-rpc.cpp: RPC_CMD_HELLO "must be always 14"; the size of what follows, uint64, little-endian
# like all of the protocol; the capabilities of the connection, none.
_CAPABILITIES = 24
_HELLO = struct.pack("<BQ", 14, _CAPABILITIES) + bytes(_CAPABILITIES)
_SIZE = struct.Struct("<Q")
_REPLY = 4 + _CAPABILITIES
_START = "Start ggml-rpc-server there, or leave it out of --rpc."
_BUSY = (
    "It serves one client at a time: wait for the current one, restart the server, or leave it out "
    "of --rpc."
)
_OF_THE_CONNECTION = ("Remote RPC server crashed", "Failed to connect")
"""In llama.cpp's last words after a lost connection (ggml-rpc.cpp)."""
_OTHER = "Give the port of a ggml-rpc-server of the same llama.cpp, or leave it out of --rpc."


def trouble(server: str) -> tuple[str, str] | None:
    """The problem with a server, and its remedy; None if it answers."""
    host, _, port = server.rpartition(":")
    try:
        # llama.cpp supports only IPv4.
        address = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)[0][4]
    except (OSError, UnicodeError):
        return f"there is no machine called {host}", "Check the name in --rpc."
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(LIMIT)
        try:
            connection.connect(address)
        except OSError as error:
            return (error.strerror or f"nothing answers within {LIMIT:.0f} s").lower(), _START
        try:
            connection.sendall(_HELLO)
            head = connection.recv(_SIZE.size, socket.MSG_WAITALL)
        except TimeoutError:
            return f"it accepts connections but sends nothing for {LIMIT:.0f} s", _BUSY
        except OSError:
            head = b""
    if len(head) < _SIZE.size or _SIZE.unpack(head)[0] != _REPLY:
        return "the program there does not use this RPC protocol", _OTHER
    return None


def unreachable(servers: Sequence[str]) -> dict[str, tuple[str, str]]:
    with ThreadPoolExecutor(max(1, len(servers)), thread_name_prefix="localspec-rpc") as threads:
        found = zip(servers, threads.map(trouble, servers), strict=True)
        return {server: what for server, what in found if what is not None}


def require_answering(servers: Sequence[str]) -> None:
    """Raise ServerUnreachable for a server that does not answer."""
    for server, (what, step) in unreachable(servers).items():
        raise ServerUnreachable(f"The RPC server {server} does not answer: {what}. {step}")


def lost(servers: Sequence[str], words: str) -> LocalspecError:
    """The error for an ended child, by llama.cpp's last `words`."""
    for server, (what, _) in unreachable(servers).items():
        return ServerUnreachable(
            f"The RPC server {server} was lost during a pass, and does not answer now: {what}. "
            "Start ggml-rpc-server there again; the next answer then continues the conversation."
        )
    names = ", ".join(servers)
    if "handshake" in words:
        return ServerUnreachable(
            f"One of the RPC servers {names} uses another version of llama.cpp's protocol. "
            "Build server and library from the same llama.cpp."
        )
    if not words:
        return ServerUnreachable(
            "The process that ran the target ended unexpectedly. Memory may be short here: use "
            "a shorter context with --ctx, or ask again."
        )
    if any(cause in words for cause in _OF_THE_CONNECTION):
        return ServerUnreachable(
            f"The connection to the RPC servers {names} was lost, but they answer again. Try again."
        )
    return NativeError(words)
