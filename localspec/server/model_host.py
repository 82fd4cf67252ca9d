"""A model behind the server: away, loading, there, or failed."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from localspec import ModelOptions, Stream
from localspec.engine import Engine
from localspec.errors import Cancelled
from localspec.llama.embeddings import Embedder, EmbeddingModel
from localspec.llama.model import Model
from localspec.loading.beside import embedder_beside
from localspec.server.activity import Activity
from localspec.server.answer import Ask
from localspec.server.failures import ApiError
from localspec.server.gate import Gate
from localspec.server.kept_session import ServedSession

logger = logging.getLogger("localspec.server")

Opened = Engine | EmbeddingModel
"""What answers, or makes embeddings alone."""

Opener = Callable[[Callable[[float], None]], Opened]
"""Opens it; told where to report the loaded fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A model that clients may ask for.

    Attributes:
        opener: opens it.
        name: what clients call it; None takes the model's own, once it is open.
        aliases: all names that the user gave it, `name` among them.
        tags: words about it that clients are told.
        reference: another name it goes by: what the user typed.
        path: its file, where that is known before it is open.
        options: how it is opened.
        session: the conversation that it goes on with, kept when the server ends.
        needs: bytes of memory that it will take, 0 where nobody can say.
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
    """Loads a model in a thread of its own, says how far it is, and lets go of it again.

    All of it but the loading belongs to the event loop's thread.

    Args:
        offer: the model.
        max_queue: answers that may wait for it.

    Attributes:
        gate: who is answered now.
        activity: what was answered.
        progress: fraction loaded.
        error: why there is no model, None while there may be one.
        loaded_at: when it was open, seconds since 1970.
        users: requests that need it.
        used: when the last one of them came, on the monotonic clock.
    """

    def __init__(self, offer: Offer, max_queue: int) -> None:
        self.offer = offer
        self.gate = Gate(1, max_queue)
        self.activity = Activity()
        self.progress = 0.0
        self.error: BaseException | None = None
        self.loaded_at = 0
        self.users = 0
        self.used = 0.0
        self._max_queue = max_queue
        self._engine: Engine | None = None
        self._embedder: Embedder | EmbeddingModel | None = None
        self._making = asyncio.Lock()
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def engine(self) -> Engine | None:
        """The engine, None while it is not open, or where the model makes embeddings alone."""
        return self._engine

    @property
    def opened(self) -> Opened | None:
        """What was opened, None while nothing is."""
        if self._engine is None and isinstance(self._embedder, EmbeddingModel):
            return self._embedder
        return self._engine

    @property
    def model(self) -> Model | None:
        """Weights and vocabulary, None while it is not open."""
        return None if self.opened is None else self.opened.model

    def require(self) -> Engine:
        """The engine.

        Raises:
            ApiError: it is not there yet, or never will be, or generates no text.
        """
        if self._engine is not None:
            return self._engine
        self.require_opened()
        raise ApiError(
            400,
            f"{self.name} makes only embeddings, not text. Ask it at /v1/embeddings, or start "
            "the server with a chat model (-m).",
            param="model",
        )

    def require_opened(self) -> Model:
        """The model, whatever it is for.

        Raises:
            ApiError: it is not there yet, or never will be.
        """
        if self.model is not None:
            return self.model
        if self.error is not None:
            raise ApiError(
                503, "The model could not be loaded. The reason is in the server's output."
            )
        raise ApiError(
            503,
            "Loading model",
            retry_after=1,
            more={"progress": round(self.progress, 3)},
        )

    @property
    def name(self) -> str:
        """What clients call the model."""
        if self.offer.name is not None:
            return self.offer.name
        return "" if self.model is None else self.model.name

    @property
    def path(self) -> Path | None:
        """Its file, None where that is not known yet."""
        return self.offer.path if self.model is None else self.model.path

    def goes_by(self, name: str) -> bool:
        """Whether a client that says this means this model."""
        file = () if self.path is None or self.offer.aliases else (self.path.stem,)
        return name in (self.name, self.offer.reference, *self.offer.aliases, *file)

    async def load(self) -> None:
        """Open the model; whether that went well is for `opened` and `error` to say."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self.progress, self.error = 0.0, None

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        self._thread = threading.Thread(
            target=self._load, args=(tell,), name="localspec-load", daemon=True
        )
        self._thread.start()
        await done.wait()
        if self._engine is not None:
            # An engine that answers several at a time says how many.
            slots = getattr(self._engine, "parallel", 1)
            self.gate = Gate(slots if isinstance(slots, int) else 1, self._max_queue)

    async def unload(self) -> None:
        """Free the model, which nobody uses."""
        engine, self._engine = self._engine, None
        embedder, self._embedder = self._embedder, None
        if embedder is not None:
            await asyncio.to_thread(embedder.close)
        if engine is not None:
            await asyncio.to_thread(engine.close)

    def answered(self, ask: Ask, stream: Stream) -> None:
        """One of its answers came to its end."""
        if self.offer.session is not None:
            text = ask.prompt if isinstance(ask.prompt, str) else None
            self.offer.session.answered(ask.messages or text, stream)

    async def embedder(self) -> Embedder | EmbeddingModel:
        """What makes embeddings of the model, made when it is first asked for.

        Raises:
            ApiError: the model is not there.
            NativeError: it cannot make any.
        """
        self.require_opened()
        async with self._making:
            if self._embedder is None:
                engine, options = self.require(), self.offer.options
                self._embedder = await asyncio.to_thread(embedder_beside, engine, options)
            return self._embedder

    def close(self) -> None:
        """Stop loading, or free the model once nothing runs on it."""
        self._closing = True
        if self._thread is not None:
            self._thread.join()
        if self._embedder is not None:
            self._embedder.close()
        if self._engine is not None:
            if self.offer.session is not None:
                self.offer.session.keep(self._engine)
            self._engine.close()

    def _load(self, tell: Callable[[], None]) -> None:
        def report(fraction: float) -> None:
            if self._closing:
                raise Cancelled("Stopped while the model was loading.")
            self.progress = fraction

        try:
            opened = self.offer.opener(report)
            self.loaded_at = int(time.time())
            if isinstance(opened, EmbeddingModel):
                self._embedder = opened
            else:
                if self.offer.session is not None:
                    self.offer.session.take_up(opened)
                self._engine = opened
        except BaseException as error:  # whoever waits for the model has to be told
            self.error = error
        tell()
