"""The context of a request: its model, the queue and the limits."""

import asyncio
import json
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from localspec import Engine, SamplingParams, __version__
from localspec.llama.model import Model
from localspec.server.answer_figures import text_of_tokens
from localspec.server.answers import Answers, StreamRequest
from localspec.server.failures import ApiError, logger
from localspec.server.model_hosts import ModelHost, Models
from localspec.server.reply import while_connected
from localspec.server.server_options import ServerOptions
from localspec.server.wire import Wire, parse_body, read_body

Value = TypeVar("Value")

_IMAGES = 16
"""Factor for the body limit if the model accepts images."""
FINGERPRINT = f"b-localspec-{__version__}"
"""`system_fingerprint` of answers; clients of llama.cpp expect it to begin with b."""


@dataclass(slots=True)
class ServerState:
    """State that all requests to a server share. `draining` is set when the server stops;
    `connections`: the open ones."""

    options: ServerOptions
    defaults: SamplingParams
    models: Models
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    connections: Collection[object] = ()
    requests: int = 0
    refused: int = 0


class Service:
    """The context of one request. Always call `leave` at the end. `unloads`: whether its model is
    unloaded then, if no other request uses it."""

    def __init__(self, state: ServerState, request: Request) -> None:
        self.state = state
        self.request = request
        self.options = state.options
        self.defaults = state.defaults
        self._entered: ModelHost | None = None
        self._answers: list[Answers] = []
        self.unloads = False

    @property
    def host(self) -> ModelHost:
        """The model that the request names; until it is known, the current one."""
        models, name = self.state.models, self.request.query_params.get("model")
        return self._entered or (models.find(name) if name else models.current)

    def require_started(self) -> None:
        self._require_open()
        self.state.models.require_started()

    def engine(self) -> Engine:
        """The loaded engine, only for use before the next await: it may be unloaded then."""
        self._require_open()
        return self.host.require()

    async def open(self, name: str | None) -> Engine:
        """Load a model and keep it until `leave`. Raises LocalspecError if that fails."""
        await self.open_model(name)
        return self.host.require()

    async def open_model(self, name: str | None) -> Model:
        self._require_open()
        models = self.state.models
        host = models.find(name or self.request.query_params.get("model"))
        await models.enter(host)
        self._entered = host
        return host.require_opened()

    def leave(self) -> None:
        for answers in self._answers:
            answers.close()
        host, self._entered = self._entered, None
        if host is not None:
            self.state.models.leave(host, unload=self.unloads)

    def _require_open(self) -> None:
        if self.state.draining.is_set():
            raise ApiError(503, "The server is stopping.")

    async def read(self, record: type[Wire]) -> Wire:
        """Parse the body of the request; an empty one counts as {}."""
        options, engine = self.options, self.host.engine
        images = engine is not None and engine.prompts.sees_images
        most = options.body * (_IMAGES if images else 1)
        body = await read_body(self.request, most=most, timeout=options.body_timeout)
        return await asyncio.to_thread(parse_body, body or b"{}", record)

    async def begin(self, engine: Engine, *requests: StreamRequest) -> Answers:
        answers = Answers(self.host, engine, requests)
        self._answers.append(answers)
        await answers.begin()
        if self.options.log_prompts:
            for answer in answers.all:
                prompt = text_of_tokens(answer.stream.prompt, engine, special=False)
                logger.info("prompt: %s", json.dumps(prompt))
        return answers

    async def run_in_slot(self, work: Callable[[Callable[[], bool]], Value]) -> Value:
        """Do work in a thread once a slot is free, and return its result. The work gets a function
        that tells whether the client has disconnected, which raises ClientGone here."""
        disconnected = threading.Event()

        async def run(_slot: int) -> Value:
            working = asyncio.ensure_future(asyncio.to_thread(work, disconnected.is_set))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                disconnected.set()  # the slot stays taken until the thread has seen it
                await asyncio.wait({working})
                working.exception()  # retrieved so that asyncio does not log it
                raise

        (task,) = self.host.queue.submit(run)
        return await while_connected(self.request, task)
