from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from localspec.decoding.interfaces import HIDDEN_BEFORE
from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.context_params import context_params
from localspec.llama.model import Model
from localspec.llama.native_context import NativeCache, NativeContext
from localspec.llama.options import ModelOptions
from localspec.llama.sequences import Sequences
from localspec.llama.target import shared_prefix

PIECE = 72
"""Most tokens of a pass, and rows of logits."""


class HeadCache(NativeCache, ABC):
    """The KV cache of a trained head, fed with hidden states of the target.

    `tokens` are read, from the text's beginning on; positions whose states are unknown are skipped.
    `target`: the target's llama_context, whose embeddings and output matrix a head may use; it must
    outlive the cache. `beside`: caches of other answers, which get the same threads.
    """

    recurrent = False
    behind = 0
    """Distance of the first token that can be read from the first known state."""

    def __init__(self, model: Model, target: Any, options: ModelOptions) -> None:
        self.model = model
        self.tokens = []
        self.native_seconds = 0.0
        self.watch = None
        self.beside: Sequence[HeadCache] = ()
        stop = ctypes.create_string_buffer(2)
        params = context_params(model, options, stop, sequences=1, rows=PIECE)
        params.n_batch = params.n_ubatch = PIECE
        self._configure(params, target)
        wanted = f"{options.context or 'default'} tokens"
        self._native = NativeContext(model, params, stop, wanted)
        self.capacity = min(self._native.cells, options.context or self._native.cells)
        self._sequences = Sequences(self._native.memory, 1)
        self._queue: list[Rows] = []  # layers' inputs that are not taken in yet
        self._forget()

    def _configure(self, params: Any, target: Any) -> None:
        params.ctx_other = target

    def _forget(self) -> None:
        self._text: list[int] = []  # whose states are known, but for those before `_start`
        self._start = 0  # the first place whose state is known
        self._made = 0  # the first whose state is not taken in yet
        self._base = 0  # the token that is at position 0 of the native cache
        self._queue.clear()

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        for cache in self.beside:
            cache.set_threads(count)

    def checkpoint(self) -> None:
        """Nothing: attention can be cut anywhere."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Another text: states of the shared beginning stay."""
        agreed = shared_prefix(self._text, prompt)
        if agreed == len(self._text):
            return
        if agreed <= self._start:
            self.clear()
            return
        self._take_in()
        self._go_back(agreed)

    @abstractmethod
    def _go_back(self, length: int) -> None:
        """Forget the text from `length` on; all of it was taken in."""

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        """Add layer inputs of tokens before the text's last: float32 [n, layers × target width]."""
        end = len(context) - 1
        first, known = end - len(inputs), len(self._text)
        if first > known or not known:
            self._begin_at(context, first)
        elif first < known:
            inputs = inputs[known - first :]
        self._queue.append(inputs)
        self._text += context[len(self._text) : end]
        # What nobody asked for is not kept for ever.
        late = end - self._made - HIDDEN_BEFORE
        if late > 0:
            left = np.concatenate(self._queue)[late:]
            self._begin_at(context, end - HIDDEN_BEFORE)
            self._queue.append(left)

    def _begin_at(self, context: Sequence[int], place: int) -> None:
        self._empty()
        self._forget()
        self._start = self._made = place
        self._base = place + self.behind
        self.tokens[:] = context[: self._base]
        self._text = list(context[: len(context) - 1])

    def _empty(self) -> None:
        self._sequences.clear()

    def clear(self) -> None:
        self._empty()
        self.tokens.clear()
        self._forget()

    def _take_in(self) -> None:
        """Take in all waiting inputs. If that raises, the rest wait on."""
        if not self._queue:
            return
        inputs = np.ascontiguousarray(np.concatenate(self._queue), np.float32)
        self._queue.clear()
        started = perf_counter()
        try:
            for first in range(0, len(inputs), PIECE):
                piece = inputs[first : first + PIECE]
                try:
                    self._take(piece)
                except (Cancelled, NativeError):
                    self._queue.append(inputs[first:])
                    raise
                self._made += len(piece)
        finally:
            self.native_seconds += perf_counter() - started

    @abstractmethod
    def _take(self, inputs: Rows) -> None:
        """Take in the next inputs, up to PIECE; none if that raises."""

    def _drop_failed(self) -> None:
        self._sequences.cut(max(0, len(self.tokens) - self._base))
