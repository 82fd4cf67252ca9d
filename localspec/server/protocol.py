"""HTTP connections with time limits: uvicorn has none for the head of a request, nor for a client
that does not read."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from localspec.server.options import ServerOptions


def protocol_class(options: ServerOptions) -> type[H11Protocol]:
    class Connection(H11Protocol):
        _patience: asyncio.TimerHandle | None = None
        _stuck: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._be_patient()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._be_patient()
            elif self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._patience, self._stuck):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self.loop.call_later(options.write_timeout, self.transport.abort)

        def resume_writing(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
                self._stuck = None
            super().resume_writing()

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # closing would wait for the client to read
            else:
                super().timeout_keep_alive_handler()

        def _be_patient(self) -> None:
            if self._patience is None:
                self._patience = self.loop.call_later(options.header_timeout, self.transport.abort)

    return Connection
