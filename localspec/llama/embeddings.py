"""Embedding vectors of texts.

For a generating model, the mean of its hidden states after the output norm, as with llama.cpp's
`--pooling mean`. An embedding model uses the pooling of its file, by default the mean.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.errors import Cancelled, NativeError, UsageError
from localspec.llama.batch import Batch, chain
from localspec.llama.context import Context
from localspec.llama.model import Model, Progress
from localspec.llama.native_context import NativeContext
from localspec.llama.options import MAX_TREE, ModelOptions

MAX_LENGTH = 2048
"""Most tokens of a text; more would need a cache as large as that of answers."""
_OF_FILE, _NONE, _MEAN, _RANK = -1, 0, 1, 4  # llama.h, llama_pooling_type

Vector = npt.NDArray[np.float32]
"""float32 [output width of the model], of norm 1."""


class Embedder:
    """Embeds texts of up to `longest` tokens with a generating model. Thread-safe. Owns its
    context; the model must outlive it."""

    def __init__(self, context: Context) -> None:
        self._lock = threading.Lock()
        self.longest = min(context.capacity, MAX_LENGTH)
        self._layer = context.model.layers
        self._context = context
        try:
            context.request_hidden((self._layer,))
        except BaseException:
            context.close()
            raise

    def embed(self, tokens: Sequence[int], stopped: Callable[[], bool] = lambda: False) -> Vector:
        """The vector of 1 … `longest` tokens, otherwise a UsageError. Cancelled if `stopped`,
        polled between passes, returns true; a NativeError if a pass fails."""
        if not 0 < len(tokens) <= self.longest:
            raise UsageError(
                f"A text of {len(tokens)} tokens cannot be embedded. Give 1 to {self.longest}."
            )
        with self._lock:
            vector = self._pool(tokens, stopped)
        length = float(np.linalg.norm(vector))
        return (vector / length if length else vector).astype(np.float32)

    def close(self) -> None:
        with self._lock:
            self._context.close()

    def _pool(self, tokens: Sequence[int], stopped: Callable[[], bool]) -> npt.NDArray[np.floating]:
        self._context.clear()
        total = np.zeros(self._context.model.output_width, np.float64)
        for start in range(0, len(tokens), MAX_TREE):
            _raise_if(stopped)
            chunk = tokens[start : start + MAX_TREE]
            self._context.extend(chunk, len(chunk))
            total += self._context.hidden(len(chunk))[self._layer].sum(axis=0, dtype=np.float64)
        return total


class EmbeddingModel(Embedder):
    """An embedding model. Raises as `Model`, and NativeError for a reranking model."""

    def __init__(
        self, path: Path, options: ModelOptions, *, progress: Progress | None = None
    ) -> None:
        self._lock = threading.Lock()
        self.model = model = Model(path, options, progress=progress)
        try:
            self.longest = min(model.trained_context, options.context or MAX_LENGTH, MAX_LENGTH)
            key = f"{model.metadata.get('general.architecture')}.pooling_type"
            pooling = int(model.metadata.get(key, _NONE))
            if pooling == _RANK:
                raise NativeError(f"{path} is a reranking model. Choose an embedding model.")
            self._native = NativeContext(
                model,
                options,
                rows=self.longest,
                batch=self.longest,  # attention is bidirectional, so a text needs a single pass
                needs_memory=False,
                n_ctx=self.longest,
                embeddings=True,
                pooling_type=_MEAN if pooling == _NONE else _OF_FILE,
            )
        except BaseException:
            model.close()
            raise
        self._batch = Batch(self.longest, 1)

    def _pool(self, tokens: Sequence[int], stopped: Callable[[], bool]) -> npt.NDArray[np.floating]:
        _raise_if(stopped)
        self._native.clear()
        self._native.run(self._batch.fill([chain(tokens, len(tokens))]))
        vector = llama_cpp.llama_get_embeddings_seq(self._native.handle, 0)
        return np.ctypeslib.as_array(vector, (self.model.output_width,)).copy()

    def close(self) -> None:
        with self._lock:
            self._native.close()
            self.model.close()


def _raise_if(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise Cancelled("Stopped on request.")
