"""Vectors of texts, made of what a generating model's last layer makes of their tokens.

Mean pooling, as llama.cpp's `--pooling mean`: the mean of the hidden states behind the output norm,
over all tokens, of length 1. A model that was trained for it does better; this is what one that
was not can give.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from localspec.errors import Cancelled, UsageError
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_TREE

LONGEST = 2048
"""Tokens of a text; longer ones would take a cache as large as the answers'."""

Vector = npt.NDArray[np.float32]
"""float32 [output width of the model]."""


class Embedder:
    """Makes vectors. Any thread may call it; they take turns.

    Args:
        context: for this alone, and closed with it; its model has to stay open until then.

    Attributes:
        longest: tokens that a text may have.

    Raises:
        NativeError: llama.cpp does not give out the last layer of this architecture.
    """

    def __init__(self, context: Context) -> None:
        self.longest = min(context.capacity, LONGEST)
        self._layer = context.model.layers
        self._context = context
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
