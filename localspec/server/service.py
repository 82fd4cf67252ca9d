"""What every endpoint works with: the model, the queue, the limits, the figures."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from localspec import Engine, SamplingParams, __version__
from localspec.decoding.session import ContextShift
from localspec.llama.model import Model
from localspec.server.activity import Activity, Traffic
from localspec.server.answer import Answers, Ask, prepared
from localspec.server.bodies import parse, read_body, validated
from localspec.server.failures import ApiError
from localspec.server.gate import Gate
from localspec.server.model_host import ModelHost
from localspec.server.models import Models
from localspec.server.options import ServerOptions
from localspec.server.reading import ReadingReports
from localspec.server.wire import length_of

logger = logging.getLogger("localspec.server")

Wire = TypeVar("Wire", bound=BaseModel)

FINGERPRINT = f"b-localspec-{__version__}"
"""What answers say they come from; clients of llama.cpp expect a b."""


@dataclass(slots=True)
class Common:
    """What all requests to a server share.

    Attributes:
        options: its limits.
        defaults: sampling parameters for what requests do not say.
        models: that it has.
        draining: set once the server is to stop; nothing new is begun then.
        traffic: of HTTP.
    """

    options: ServerOptions
    defaults: SamplingParams
    models: Models
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    traffic: Traffic = field(default_factory=Traffic)


class Service:
    """What one request works with. Leave it, whatever happens."""

    def __init__(self, common: Common) -> None:
        self.common = common
        self.options = common.options
        self.defaults = common.defaults
        self.draining = common.draining
        self._entered: ModelHost | None = None

    @property
    def host(self) -> ModelHost:
        """The model that the request is for; before it said so, the one in use."""
        return self._entered or self.common.models.current

    @property
    def gate(self) -> Gate:
        """The queue of that model."""
        return self.host.gate

    @property
    def activity(self) -> Activity:
        """The figures of that model."""
        return self.host.activity

    def require_started(self) -> None:
        """Return where requests are answered.

        Raises:
            ApiError: the first model is not there yet, or the server is about to stop.
        """
        self._require_open()
        self.common.models.require_started()

    def engine(self) -> Engine:
        """The engine of that model, to look at; it may be gone at the next await.

        Raises:
            ApiError: it is not there (yet), or the server is about to stop.
        """
        self._require_open()
        return self.host.require()

    async def open(self, name: str | None) -> Engine:
        """The engine of the model that a client asks for, which stays until the request is left.

        Raises:
            ApiError: there is no such model, or it is not there yet, or it makes embeddings alone,
                or the server is stopping.
            LocalspecError: it cannot be loaded.
        """
        return (await self._enter(name)).require()

    async def open_model(self, name: str | None) -> Model:
        """The same where it need not generate text."""
        return (await self._enter(name)).require_opened()

    async def _enter(self, name: str | None) -> ModelHost:
        self._require_open()
        models = self.common.models
        host = models.find(name)
        await models.enter(host)
        self._entered = host
        return host

    def leave(self) -> None:
        """The request is over."""
        host, self._entered = self._entered, None
        if host is not None:
            self.common.models.leave(host)

    def _require_open(self) -> None:
        if self.draining.is_set():
            raise ApiError(503, "The server is stopping.")

    async def read(self, request: Request, kind: type[Wire]) -> Wire:
        """The body of a request.

        Raises:
            ApiError: it is not what it should be.
        """
        return validated(kind, await self.read_json(request))

    async def read_json(self, request: Request) -> Any:
        """The same, as it is."""
        return await parse(await self.read_bytes(request))

    async def read_bytes(self, request: Request) -> bytes:
        """The same, not parsed."""
        options = self.options
        return await read_body(request, most=options.body, timeout=options.body_timeout)

    async def parsed(self, body: bytes, kind: type[Wire]) -> Wire:
        """A body that was read."""
        return validated(kind, await parse(body))

    def variables(
        self, said: Mapping[str, Any] | None = None, *, effort: str | None = None
    ) -> dict[str, Any]:
        """Variables for the model's template: what a request says, and what llama.cpp tells
        templates besides: today's date (Llama 3 would believe in one of 2024), and whether models
        that may think before they answer are to, as templates differ in what they take silence
        for. FireFunction's wants its tools as a text of its own; it is told of them as models are
        that know none. `effort`: how much to think, OpenAI's reasoning_effort."""
        today = datetime.now()
        return {
            "date_string": today.strftime("%d %b %Y"),
            "datetime": today.strftime("%b %d %Y"),
            "functions": "",
            "enable_thinking": effort != "none" if effort else self.options.thinking,
            **({"reasoning_effort": effort} if effort and effort != "none" else {}),
            **(said or {}),
        }

    def longest(self, asked: int | None) -> int | None:
        """The longest answer to a request that asks for so many tokens, or does not say.

        Raises:
            ApiError: it asks for none at all.
        """
        found = length_of(asked)
        return self.options.max_tokens if found is None else found

    def shift(self, keep: int | None, discard: int | None = None) -> ContextShift | None:
        """What leaves a context that is full, None where answers end there (`--context-shift`).

        Args:
            keep, discard: what a request says, llama.cpp's n_keep and n_discard.
        """
        if not self.options.context_shift:
            return None
        return ContextShift(max(-1, keep or 0), max(0, discard or 0))

    async def begin(self, engine: Engine, asks: Sequence[Ask]) -> Answers:
        """Have some answers written; the prompts are checked before they queue.

        Raises:
            ApiError: the queue is full.
            LocalspecError: one of them cannot be answered.
        """
        reports = [ReadingReports() if ask.reports else None for ask in asks]
        streams = [
            await prepared(engine, ask, told) for ask, told in zip(asks, reports, strict=True)
        ]
        if self.options.log_prompts:
            for stream in streams:
                pieces = b"".join(engine.token_bytes(token) for token in stream.context)
                logger.info("prompt: %s", json.dumps(pieces.decode("utf-8", "replace")))
        host = self.host
        return Answers(
            streams,
            host.gate,
            host.activity,
            lambda number: host.answered(asks[number], streams[number]),
            reports,
        )
