"""A model of the server: unloaded, loading, loaded or failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from localspec import ModelOptions, Stream
from localspec.engine import Engine
from localspec.errors import Cancelled
from localspec.llama.embeddings import Embedder, EmbeddingModel
from localspec.llama.model import Model
from localspec.loading.beside import embedder_beside
from localspec.parallel_engine import ParallelEngine
from localspec.server.activity import Activity
from localspec.server.failures import ApiError
from localspec.server.gate import Gate
from localspec.server.kept_session import Prompted, ServedSession
from localspec.worker_threads import off_the_loop

Opened = Engine | EmbeddingModel

Opener = Callable[[Callable[[float], None]], Opened]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A model that clients may ask for.

    Attributes:
        name: for clients; None takes the model's own. `aliases` are all that the user gave.
        reference: what the user typed, which clients may use as well.
        needs: bytes of memory that it will take, 0 where unknown.
    """

    opener: Opener
    name: str | None = None
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    reference: str | None = None
    path: Path | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    needs: Callable[[], int] = lambda: 0
    session: ServedSession | None = None


class ModelHost:
    """Loads a model in a thread; all else belongs to the event loop's. `users` are requests that
    need it, the last of which came at `used`, on the monotonic clock."""

    def __init__(self, offer: Offer, max_queue: int) -> None:
        self.offer = offer
        self.opened: Opened | None = None
        self.gate = Gate(1, max_queue)
        self.activity = Activity()
        self.progress = 0.0
        self.failed = False
        self.loaded_at = 0
        self.users = 0
        self.used = 0.0
        self._max_queue = max_queue
        self._embedder: Embedder | None = None
        self._making = asyncio.Lock()
        self._closing = False
        self._loading: asyncio.Future[Opened] | None = None

    @property
    def engine(self) -> Engine | None:
        """None while it is not loaded, or where the model makes only embeddings."""
        return None if isinstance(self.opened, EmbeddingModel) else self.opened

    @property
    def model(self) -> Model | None:
        return None if self.opened is None else self.opened.model

    def require(self) -> Engine:
        self.require_opened()
        if self.engine is None:
            raise ApiError(
                400,
                f"{self.name} makes only embeddings, not text. Ask it at /v1/embeddings, or start "
                "the server with a chat model (-m).",
                param="model",
            )
        return self.engine

    def require_opened(self) -> Model:
        if self.model is not None:
            return self.model
        if self.failed:
            raise ApiError(
                503, "The model could not be loaded. The reason is in the server's output."
            )
        more = {"progress": round(self.progress, 3)}
        raise ApiError(503, "Loading model", retry_after=1, more=more)

    @property
    def name(self) -> str:
        if self.offer.name is not None:
            return self.offer.name
        return "" if self.model is None else self.model.name

    @property
    def path(self) -> Path | None:
        return self.offer.path if self.model is None else self.model.path

    def goes_by(self, name: str) -> bool:
        file = () if self.path is None or self.offer.aliases else (self.path.stem,)
        return name in (self.name, self.offer.reference, *self.offer.aliases, *file)

    async def load(self) -> Opened:
        """Open the model; a LocalspecError where it cannot be."""
        # In a task of its own: a request that is cancelled does not end it.
        self._loading = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._loading)

    async def _load(self) -> Opened:
        self.progress, self.failed = 0.0, False
        try:
            self.opened = await off_the_loop("localspec-load", self._open)
        except BaseException:
            self.failed = True
            raise
        self.offer = replace(self.offer, name=self.name, path=self.path)
        self.loaded_at = int(time.time())
        slots = self.opened.parallel if isinstance(self.opened, ParallelEngine) else 1
        self.gate = Gate(slots, self._max_queue)
        return self.opened

    async def unload(self) -> None:
        if self.offer.session is not None and self.engine is not None:
            await asyncio.to_thread(self.offer.session.keep, self.engine)
        opened, self.opened = self.opened, None
        embedder, self._embedder = self._embedder, None
        for one in (embedder, opened):
            if one is not None:
                await asyncio.to_thread(one.close)

    def answered(self, prompt: Prompted | None, stream: Stream) -> None:
        if self.offer.session is not None:
            self.offer.session.answered(prompt, stream)

    async def embedder(self) -> Embedder | EmbeddingModel:
        """Made when it is first needed; a NativeError where the model gives no embeddings."""
        self.require_opened()
        if isinstance(self.opened, EmbeddingModel):
            return self.opened
        async with self._making:
            if self._embedder is None:
                options = self.offer.options
                self._embedder = await asyncio.to_thread(embedder_beside, self.require(), options)
            return self._embedder

    async def close(self) -> None:
        self._closing = True
        if self._loading is not None:
            await asyncio.wait({self._loading})
        await self.unload()

    def _open(self) -> Opened:
        def report(fraction: float) -> None:
            if self._closing:
                raise Cancelled("Stopped while the model was loading.")
            self.progress = fraction

        opened = self.offer.opener(report)
        if self.offer.session is not None and not isinstance(opened, EmbeddingModel):
            self.offer.session.take_up(opened)
        return opened
