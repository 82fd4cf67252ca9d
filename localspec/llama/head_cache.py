from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from localspec.decoding.interfaces import HIDDEN_BEFORE
from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.model import Model
from localspec.llama.native_context import NativeCache, NativeContext
from localspec.llama.options import ModelOptions
from localspec.llama.sequences import Sequences
from localspec.llama.target import shared_prefix

MAX_PASS = 72
"""Most tokens of a pass, and rows of logits."""


class HeadCache(NativeCache, ABC):
    """The KV cache of a trained head, fed with hidden states of the target.

    `tokens` are read from the beginning of the text; positions with unknown states are skipped.
    `target`: the target's llama_context, whose embeddings and output matrix a head may use; it must
    outlive the cache. `siblings`: caches of other answers, which get the same threads.
    """

    recurrent = False
    offset = 0
    """Distance from the first known state to the first token that can be read."""

    def __init__(self, model: Model, target: Any, options: ModelOptions) -> None:
        super().__init__(model)
        self.siblings: Sequence[HeadCache] = ()
        self._native = NativeContext(
            model, options, rows=MAX_PASS, batch=MAX_PASS, **self._fields(target)
        )
        self.capacity = min(self._native.cells, options.context or self._native.cells)
        self._sequences = Sequences(self._native.memory, 1)
        self._pending: list[Rows] = []  # layer inputs that are not encoded yet
        self._forget()

    def _fields(self, target: Any) -> dict[str, Any]:
        return {"ctx_other": target}

    def _forget(self) -> None:
        self._text: list[int] = []  # tokens with known states, from `_start` on
        self._start = 0  # the first position with a known state
        self._encoded = 0  # the first position that is not encoded yet
        self._base = 0  # the token at position 0 of the native cache
        self._pending.clear()

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        for cache in self.siblings:
            cache.set_threads(count)

    def checkpoint(self) -> None:
        """Do nothing: attention can be cut anywhere."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Start another text, keeping the states of its common prefix."""
        agreed = shared_prefix(self._text, prompt)
        if agreed == len(self._text):
            return
        if agreed <= self._start:
            self.clear()
            return
        self.read()
        self._rewind(agreed)

    @abstractmethod
    def _rewind(self, length: int) -> None:
        """Forget the text from `length` on; all of it is encoded."""

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        """Add layer inputs of tokens before the text's last: float32 [n, layers × target width]."""
        end = len(context) - 1
        first, known = end - len(inputs), len(self._text)
        if first > known or not known:
            self._restart_at(context, first)
        elif first < known:
            inputs = inputs[known - first :]
        self._pending.append(inputs)
        self._text += context[len(self._text) : end]
        # Without drafts, pending inputs would grow without bound.
        late = end - self._encoded - HIDDEN_BEFORE
        if late > 0:
            left = np.concatenate(self._pending)[late:]
            self._restart_at(context, end - HIDDEN_BEFORE)
            self._pending.append(left)

    def _restart_at(self, context: Sequence[int], position: int) -> None:
        self._sequences.clear()
        self._forget()
        self._start = self._encoded = position
        self._base = position + self.offset
        self.tokens[:] = context[: self._base]
        self._text = list(context[: len(context) - 1])

    def clear(self) -> None:
        self._sequences.clear()
        self.tokens.clear()
        self._forget()

    def read(self) -> None:
        """Encode all pending inputs. If that raises, the rest stay pending."""
        if not self._pending:
            return
        inputs = np.ascontiguousarray(np.concatenate(self._pending), np.float32)
        self._pending.clear()
        started = perf_counter()
        try:
            for first in range(0, len(inputs), MAX_PASS):
                piece = inputs[first : first + MAX_PASS]
                try:
                    self._encode(piece)
                except (Cancelled, NativeError):
                    self._pending.append(inputs[first:])
                    raise
                self._encoded += len(piece)
        finally:
            self.native_seconds += perf_counter() - started

    @abstractmethod
    def _encode(self, inputs: Rows) -> None:
        """Encode the next inputs, up to MAX_PASS; none if that raises."""

    def _drop_failed(self) -> None:
        self._sequences.cut(max(0, len(self.tokens) - self._base))
