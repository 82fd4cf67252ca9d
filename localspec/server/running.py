"""Runs the server: sockets, loading the model in the background, and orderly shutdown."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec import SamplingParams
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.server.app import build
from localspec.server.failures import logger
from localspec.server.model_hosts import ModelHost, Models, OpenModel
from localspec.server.server_options import ServerOptions
from localspec.server.service import ServerState
from localspec.signals import END_SIGNALS, HANGUPS, handle_signals
from localspec.text import printable


def protocol_class(options: ServerOptions) -> type[H11Protocol]:
    """Return a protocol with timeouts that uvicorn lacks: for the head of a request, and for
    clients that do not read."""

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._limits: dict[str, asyncio.TimerHandle] = {}
            self._limit("head", options.header_timeout)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waits = self.cycle is None or self.cycle.response_complete
            self._limit("head", options.header_timeout if waits else None)

        def eof_received(self) -> Any:  # asyncio's is true if the connection stays open
            """A client that has sent all it will send may still wait for its answer."""
            cycle, version = self.cycle, self.conn.their_http_version
            # Clients of older versions do not know what `_probe` writes.
            if cycle is None or cycle.more_body or cycle.response_started or version != b"1.1":
                return False
            cycle.keep_alive = False
            self._probe(0.05)
            return True

        def _probe(self, seconds: float) -> None:
            """Write until the response begins: only a failed write shows that the client left."""
            if not (self.cycle.response_started or self.transport.is_closing()):
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.loop.call_later(seconds, self._probe, min(2 * seconds, 1.0))

        def handle_events(self) -> None:
            data, _ = self.conn.trailing_data
            if self.conn.their_state is h11.IDLE and data[:1] in (b"\r", b"\n"):
                # h11 refuses the empty line with which some clients end a body.
                self.conn = h11.Connection(h11.SERVER, options.headers)
                if data := data.lstrip(b"\r\n"):  # b"" would be the end
                    self.conn.receive_data(data)
            super().handle_events()

        def _should_upgrade(self) -> bool:
            return False  # Java's clients ask for HTTP/2; uvicorn advises to install packages

        def connection_lost(self, exc: Exception | None) -> None:
            for name in [*self._limits]:
                self._limit(name, None)
            super().connection_lost(exc)

        def shutdown(self) -> None:
            cycle = self.cycle
            if cycle is not None and cycle.more_body and not cycle.response_complete:
                self.transport.abort()  # the rest of the request may never come
            else:
                super().shutdown()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._limit("write", options.write_timeout)

        def resume_writing(self) -> None:
            self._limit("write", None)
            super().resume_writing()

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # closing would wait for the client to read
            else:
                super().timeout_keep_alive_handler()

        def _limit(self, name: str, seconds: float | None) -> None:
            """Abort after some seconds, counted from the first call; None ends the limit."""
            if seconds is None:
                if timer := self._limits.pop(name, None):
                    timer.cancel()
            elif name not in self._limits:
                self._limits[name] = self.loop.call_later(seconds, self.transport.abort)

    return Connection


_BACKLOG = 128
_SIGNALS = (signal.SIGINT, *END_SIGNALS)


@contextlib.contextmanager
def listening_sockets(options: ServerOptions) -> Generator[list[socket.socket], None, None]:
    """Open sockets at the hosts and port of the options. Raises LocalspecError if the port is
    taken, and UsageError if a host is not an address of this machine."""
    with contextlib.ExitStack() as stack:
        found: list[socket.socket] = []
        for host in options.hosts:
            port = found[0].getsockname()[1] if found else options.port
            listener = _listen(host, port, alone=len(options.hosts) == 1)
            found.append(stack.enter_context(contextlib.closing(listener)))
        yield found


def _listen(host: str, port: int, *, alone: bool) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise UsageError(
            f"There is no host '{host}'. Give an address of this machine with --host."
        ) from None
    # A name may have IPv4 and IPv6 addresses; clients try 127.0.0.1.
    family, _, _, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    # The address of all interfaces with IPv6 would take IPv4's port, which another host may need.
    both = alone and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        server = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            why = f"This machine has no address {host}. Name another one with --host."
            raise UsageError(why) from None
        known = {
            errno.EADDRINUSE: f"Port {port} of {host} is taken. Give another one with --port, or 0 "
            "for any.",
            errno.EACCES: f"Port {port} is reserved. Give one above 1023 with --port.",
        }
        why = os.strerror(error.errno or 0)
        usual = f"Nothing can listen at {host}: {why}. Give another --host or --port."
        raise LocalspecError(known.get(error.errno or 0, usual)) from None
    server.setblocking(False)
    return server


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        level = min(record.levelno, logging.WARNING) if error is None else logging.ERROR
        logger.log(level, "uvicorn: %s", printable(record.getMessage()), exc_info=error)


class _Server(uvicorn.Server):
    """A server that drains on the first signal, and stops at once on the second. `cut`: whether
    answers were cut off. It handles signals in the block of `signals`, until it has stopped."""

    def __init__(self, config: uvicorn.Config, draining: asyncio.Event) -> None:
        super().__init__(config)
        self._draining = draining
        self.cut = False
        self.signals = contextlib.ExitStack()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        with self.signals:
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig in HANGUPS:
            return  # a closing terminal may send several
        self.cut = self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._draining.set()
        cutting = asyncio.ensure_future(self._cut_off())
        try:
            await super().shutdown(sockets)
            self.cut |= bool(self.server_state.connections)  # the time for draining is over
        finally:
            cutting.cancel()

    async def _cut_off(self) -> None:
        # Since Python 3.12, asyncio waits for a server's connections even if `force_exit` is set.
        while not self.cut:
            await asyncio.sleep(0.1)
        self.abort_connections()

    def abort_connections(self) -> None:
        """An answer that still runs is cut off, so that it does not look complete."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def serve(
    options: ServerOptions,
    hosts: Sequence[ModelHost],
    defaults: SamplingParams,
    *,
    listening: Callable[[str], None],
    ready: Callable[[OpenModel], None],
) -> bool:
    """Answer requests until a signal arrives; returns whether all running answers were completed.
    `defaults`: for requests that do not set sampling parameters; `listening`: called with each
    address, before the model is loaded; `ready`: called with every model that was opened. Raises
    LocalspecError if it cannot listen, or the first model cannot be opened."""
    uvicorn_log = logging.getLogger("uvicorn")
    uvicorn_log.handlers, uvicorn_log.propagate = [_Forward()], False
    uvicorn_log.setLevel(logging.WARNING)
    state = ServerState(options, defaults, Models(hosts, options.max_queue, ready))
    server = _server(state)
    with listening_sockets(options) as listeners, server.signals:
        server.signals.enter_context(handle_signals(_SIGNALS, server.handle_exit))
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            listening(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        return asyncio.run(_serve(state, server, listeners))


def _server(state: ServerState) -> _Server:
    options = state.options
    config = uvicorn.Config(
        build(state),
        http=protocol_class(options),
        loop="asyncio",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=options.headers,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, round(options.drain)),
        timeout_keep_alive=30,
    )
    server = _Server(config, state.draining)
    state.connections = server.server_state.connections
    return server


class _LoopErrors:
    """Reports once a minute if no connection can be accepted; asyncio tries hundreds of times per
    second."""

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and "socket" in context:
            if loop.time() < self._due:
                return
            self._due = loop.time() + 60.0
            why = f"{os.strerror(error.errno or 0)}. Close some, or raise 'ulimit -n'."
            context = {"message": f"localspec: No connection can be accepted: {why}"}
        loop.default_exception_handler(context)


async def _serve(state: ServerState, server: _Server, listeners: list[socket.socket]) -> bool:
    asyncio.get_running_loop().set_exception_handler(_LoopErrors())
    starting = asyncio.ensure_future(_start(state.models, server))
    try:
        await server.serve(sockets=listeners)
    finally:
        server.abort_connections()
        for host in state.models.hosts:
            for _, stream in list(host.slots.values()):
                stream.cancel()
        await state.models.close()
        failure = await starting
    # Loading that a signal cancelled has not failed.
    if failure is not None and not (server.cut or isinstance(failure, Cancelled)):
        raise failure
    return not server.cut


async def _start(models: Models, server: _Server) -> BaseException | None:
    try:
        await models.start()
    except BaseException as error:
        server.should_exit = True
        return error
    return None
