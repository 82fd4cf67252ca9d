"""What every endpoint works with: the model, the queue, the limits, the figures."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from localspec import Engine, SamplingParams, __version__
from localspec.server.activity import Activity
from localspec.server.answer import Answers, Ask, prepared
from localspec.server.bodies import parse, read_body, validated
from localspec.server.failures import ApiError
from localspec.server.gate import Gate
from localspec.server.model_host import ModelHost, Opener
from localspec.server.options import ServerOptions
from localspec.server.wire import length_of

logger = logging.getLogger("localspec.server")

Wire = TypeVar("Wire", bound=BaseModel)

FINGERPRINT = f"b-localspec-{__version__}"
"""What answers say they come from; clients of llama.cpp expect a b."""


class Service:
    """One server's parts.

    Args:
        options: its limits.
        opener: opens the engine.
        defaults: sampling parameters for what requests do not say.
        done: called in the event loop's thread when the model is there, or has failed.

    Attributes:
        draining: set once the server is to stop; nothing new is begun then.
    """

    def __init__(
        self,
        options: ServerOptions,
        opener: Opener,
        defaults: SamplingParams,
        done: Callable[[], None],
    ) -> None:
        self.options = options
        self.defaults = defaults
        self.activity = Activity()
        self.gate = Gate(1, options.max_queue)
        self.draining = asyncio.Event()
        self._done = done
        self._loop: asyncio.AbstractEventLoop | None = None
        self.host = ModelHost(opener, self._from_loader, options.alias)

    def start(self) -> None:
        """Begin to load the model; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self.host.start()

    def _from_loader(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loaded)

    def _loaded(self) -> None:
        engine = self.host.engine
        if engine is not None:
            # An engine that answers several at a time says how many.
            slots = getattr(engine, "parallel", 1)
            self.gate = Gate(slots if isinstance(slots, int) else 1, self.options.max_queue)
        self._done()

    def engine(self) -> Engine:
        """The engine, for a request that is to be answered.

        Raises:
            ApiError: it is not there (yet), or the server is about to stop.
        """
        if self.draining.is_set():
            raise ApiError(503, "The server is stopping.")
        return self.host.require()

    async def read(self, request: Request, kind: type[Wire]) -> Wire:
        """The body of a request.

        Raises:
            ApiError: it is not what it should be.
        """
        return validated(kind, await self.read_json(request))

    async def read_json(self, request: Request) -> Any:
        """The same, as it is."""
        options = self.options
        return await parse(
            await read_body(request, most=options.body, timeout=options.body_timeout)
        )

    def longest(self, asked: int | None) -> int | None:
        """The longest answer to a request that asks for so many tokens, or does not say.

        Raises:
            ApiError: it asks for none at all.
        """
        found = length_of(asked)
        return self.options.max_tokens if found is None else found

    async def begin(self, engine: Engine, asks: Sequence[Ask]) -> Answers:
        """Have some answers written; the prompts are checked before they queue.

        Raises:
            ApiError: the queue is full.
            LocalspecError: one of them cannot be answered.
        """
        streams = [await prepared(engine, ask) for ask in asks]
        if self.options.log_prompts:
            for stream in streams:
                pieces = b"".join(engine.token_bytes(token) for token in stream.context)
                logger.info("prompt: %s", json.dumps(pieces.decode("utf-8", "replace")))
        return Answers(streams, self.gate, self.activity)
