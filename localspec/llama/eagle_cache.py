"""The KV cache of an EAGLE-3 head or an MTP layer, which reads hidden states beside tokens.

At place P an EAGLE-3 head (Li et al. 2025, section 3) reads the token at P + 1 and a state of
P, and predicts the next token. The state comes from inputs of three target layers (`feed`), behind
a drafted token from the head's own last pass. An MTP layer (DeepSeek-V3, section 2.2) reads the
same pairs with the target's output state; its positions differ by one, which rotations hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from localspec.decoding.sampling import Rows
from localspec.llama.batch import Batch, chain
from localspec.llama.head_cache import PIECE, HeadCache
from localspec.llama.hidden import nextn_rows
from localspec.llama.model import Model
from localspec.llama.native_context import failure
from localspec.llama.options import ModelOptions

_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP


class EagleCache(HeadCache):
    """Implements `localspec.decoding.caches.Cache`; `tokens` includes drafted ones.
    The first token has no pair."""

    max_draft = PIECE - 1
    behind = 1

    @property
    def width(self) -> int:
        return self.model.width

    def __init__(self, model: Model, target: Any, options: ModelOptions) -> None:
        super().__init__(model, target, options)
        llama_cpp_ext.llama_set_embeddings_nextn(self._native.handle, True, True)
        self._batch = Batch(PIECE, 1, self.width)
        self._states = np.empty((self.capacity, self.width), np.float32)  # by place; sparse memory
        self._own = np.zeros(self.width, np.float32)  # what the head made of the last pair

    def _forget(self) -> None:
        super()._forget()
        self._true = 0  # so many of `tokens` were read with the target's states

    def _go_back(self, length: int) -> None:
        del self._text[length:]
        self._made = length
        self.truncate(min(len(self.tokens), length))

    def _begin_at(self, context: Sequence[int], place: int) -> None:
        super()._begin_at(context, place)
        self._true = len(self.tokens)

    def _take(self, inputs: Rows) -> None:
        batch = self._batch.rows(inputs, outputs=True)
        status = llama_cpp.llama_encode(self._native.handle, batch)
        if status:
            raise failure(status, len(inputs))
        self._states[self._made : self._made + len(inputs)] = self._own_rows(len(inputs))

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """As `Context.extend`."""
        start, total = 0, len(tokens)
        while total - start > PIECE:
            size = min(PIECE, total - start - outputs)
            self._chain(tokens[start : start + size], 0)
            start += size
        return self._chain(tokens[start:], outputs)

    def _chain(self, tokens: Sequence[int], outputs: int) -> Rows:
        held, count = len(self.tokens), len(tokens)
        states, known = self._states_of(held, count)
        # The graph of a head does not pick rows: logits are those of all tokens, or of none.
        made = count if outputs else 0
        part = chain(tokens, made, held - self._base, states=states)
        rows = self._decode(self._batch.fill([part]), made)
        if outputs:
            self._own = self._own_rows(count)[-1]
        if self._true == held:
            self._true += known
        self.tokens += tokens
        return rows[-outputs:] if outputs else rows

    def drop_drafted(self) -> None:
        self.truncate(self._true)

    def truncate(self, length: int) -> None:
        if length >= len(self.tokens):
            return
        if length >= self._base:
            self._sequences.cut(length - self._base)
            del self.tokens[length:]
            self._true = min(self._true, length)
        else:
            self.clear()

    def clear(self) -> None:
        super().clear()
        self._own = np.zeros_like(self._own)

    def _states_of(self, first: int, count: int) -> tuple[Rows, int]:
        """The states for these tokens, and how many of them, from the first, are the target's. The
        others get the head's latest."""
        # The pair of the token at i has the state of i - 1.
        place = first - 1
        known = 0
        if place >= self._start and self._text:
            known = max(0, min(count, len(self._text) - place))
        if known and place + known > self._made:
            self._take_in()
        states = np.empty((count, self.width), np.float32)
        states[:known] = self._states[place : place + known] if known else 0.0
        states[known:] = self._own
        return states, known

    def _own_rows(self, count: int) -> Rows:
        return nextn_rows(self._native.handle, count, self.width)


class MtpCache(EagleCache):
    """That of the first MTP layer of a model opened with `mtp`."""

    @property
    def width(self) -> int:
        return self.model.output_width

    def _configure(self, params: Any, target: Any) -> None:
        params.ctx_type = _MTP
        params.n_rs_seq = 0  # the layer attends, whatever the others do

    def _take(self, inputs: Rows) -> None:
        self._states[self._made : self._made + len(inputs)] = inputs
