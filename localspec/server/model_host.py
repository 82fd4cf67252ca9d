"""The model behind the server: loading, ready, or failed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from localspec.engine import Engine
from localspec.errors import Cancelled
from localspec.server.failures import ApiError

logger = logging.getLogger("localspec.server")

Opener = Callable[[Callable[[float], None]], Engine]
"""Opens the engine; told where to report the loaded fraction."""


class ModelHost:
    """Loads a model in a thread of its own, and says how far it is.

    Args:
        opener: opens it.
        done: called in that thread when it is open, or has failed.
        alias: what clients call the model, instead of its file's name.

    Attributes:
        progress: fraction loaded.
        error: why there is no model, None while there may be one.
        loaded_at: when it was open, seconds since 1970.
    """

    def __init__(self, opener: Opener, done: Callable[[], None], alias: str | None = None) -> None:
        self._alias = alias
        self.progress = 0.0
        self.error: BaseException | None = None
        self.loaded_at = 0
        self._opener = opener
        self._done = done
        self._engine: Engine | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._load, name="localspec-load", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    @property
    def engine(self) -> Engine | None:
        """The engine, None before it is open."""
        return self._engine

    def require(self) -> Engine:
        """The engine.

        Raises:
            ApiError: it is not there yet, or never will be.
        """
        if self._engine is not None:
            return self._engine
        if self.error is not None:
            raise ApiError(503, "The model could not be loaded.")
        raise ApiError(
            503,
            "Loading model",
            retry_after=1,
            more={"progress": round(self.progress, 3)},
        )

    @property
    def name(self) -> str:
        """What clients call the model."""
        if self._alias is not None:
            return self._alias
        return "" if self._engine is None else self._engine.model.path.stem

    def close(self) -> None:
        """Stop loading, or free the model once nothing runs on it."""
        self._closing = True
        if self._thread.ident is not None:
            self._thread.join()
        if self._engine is not None:
            self._engine.close()

    def _load(self) -> None:
        def report(fraction: float) -> None:
            if self._closing:
                raise Cancelled("Stopped while the model was loading.")
            self.progress = fraction

        try:
            engine = self._opener(report)
            self.loaded_at = int(time.time())
            self._engine = engine
        except BaseException as error:  # whoever waits for the model has to be told
            self.error = error
        self._done()
