"""Vectors of texts, made of what a generating model's last layer makes of their tokens.

Mean pooling, as llama.cpp's `--pooling mean`: the mean of the hidden states behind the output norm,
over all tokens, of length 1. A model that was trained for it does better; this is what one that
was not can give.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from localspec.errors import Cancelled, UsageError
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_TREE
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

LONGEST = 2048
"""Tokens of a text; longer ones would take a cache as large as the answers'."""

Vector = npt.NDArray[np.float32]
"""float32 [output width of the model]."""


class Embedder:
    """Makes vectors, in a cache of its own. Any thread may call it; they take turns.

    Args:
        model: open; it has to stay so until this is closed.
        options: those that it was opened with.

    Attributes:
        longest: tokens that a text may have.

    Raises:
        NativeError: there is no memory for another cache, or llama.cpp does not give out the last
            layer of this architecture.
    """

    def __init__(self, model: Model, options: ModelOptions) -> None:
        self.longest = min(options.context or LONGEST, model.trained_context, LONGEST)
        self._layer = model.layers
        self._context = Context(model, replace(options, context=self.longest, parallel=1))
        self._lock = threading.Lock()
        try:
            self._context.want_hidden((self._layer,))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free the cache, once nobody uses it."""
        with self._lock:
            self._context.close()

    def embed(self, tokens: Sequence[int], stopped: Callable[[], bool] = lambda: False) -> Vector:
        """The vector of a text.

        Args:
            tokens: at least one, at most `longest`.
            stopped: asked between passes.

        Raises:
            UsageError: no tokens, or more.
            Cancelled: `stopped` said so.
            NativeError: llama.cpp refused a pass.
        """
        if not 0 < len(tokens) <= self.longest:
            raise UsageError(
                f"A text of {len(tokens)} tokens cannot be embedded. Give 1 to {self.longest}."
            )
        with self._lock:
            self._context.clear()
            total = np.zeros(self._context.model.output_width, np.float64)
            for start in range(0, len(tokens), MAX_TREE):
                if stopped():
                    raise Cancelled("Stopped on request.")
                chunk = tokens[start : start + MAX_TREE]
                self._context.extend(chunk, len(chunk))
                total += self._context.hidden(len(chunk))[self._layer].sum(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(total))
        return (total / length if length else total).astype(np.float32)
