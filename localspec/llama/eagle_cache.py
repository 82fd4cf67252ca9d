"""The KV cache of an EAGLE-3 head or an MTP layer, which reads hidden states beside tokens.

At position P an EAGLE-3 head (Li et al. 2025, section 3) reads the token at P + 1 and a state of
P, and predicts the next token. The state comes from inputs of three target layers (`feed`), after
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
from localspec.llama.head_cache import MAX_PASS, HeadCache
from localspec.llama.hidden import nextn_rows
from localspec.llama.model import Model
from localspec.llama.native_context import failure
from localspec.llama.options import ModelOptions

_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP


class EagleCache(HeadCache):
    """Implements `localspec.decoding.caches.Cache`; `tokens` includes drafted ones.
    The first token is not read, as it has no state before it."""

    max_draft = MAX_PASS - 1
    offset = 1

    @property
    def width(self) -> int:
        return self.model.width

    def __init__(self, model: Model, target: Any, options: ModelOptions) -> None:
        super().__init__(model, target, options)
        llama_cpp_ext.llama_set_embeddings_nextn(self._native.handle, True, True)
        self._batch = Batch(MAX_PASS, 1, self.width)
        # By position; memory is allocated when written.
        self._states = np.empty((self.capacity, self.width), np.float32)
        self._own_state = np.zeros(self.width, np.float32)  # the head's state after its last token

    def _forget(self) -> None:
        super()._forget()
        self._verified = 0  # how many of `tokens` were read with the target's states

    def _rewind(self, length: int) -> None:
        del self._text[length:]
        self._encoded = length
        self.truncate(min(len(self.tokens), length))

    def _restart_at(self, context: Sequence[int], position: int) -> None:
        super()._restart_at(context, position)
        self._verified = len(self.tokens)

    def _encode(self, inputs: Rows) -> None:
        batch = self._batch.rows(inputs, outputs=True)
        status = llama_cpp.llama_encode(self._native.handle, batch)
        if status:
            raise failure(status, len(inputs))
        self._states[self._encoded : self._encoded + len(inputs)] = self._own_rows(len(inputs))

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """As `Context.extend`."""
        start, total = 0, len(tokens)
        while total - start > MAX_PASS:
            size = min(MAX_PASS, total - start - outputs)
            self._chain(tokens[start : start + size], 0)
            start += size
        return self._chain(tokens[start:], outputs)

    def _chain(self, tokens: Sequence[int], outputs: int) -> Rows:
        held, count = len(self.tokens), len(tokens)
        states, known = self._states_of(held, count)
        # A head's graph cannot select rows: it computes logits of all tokens, or of none.
        made = count if outputs else 0
        part = chain(tokens, made, held - self._base, states=states)
        rows = self._decode(self._batch.fill([part]), made)
        if outputs:
            self._own_state = self._own_rows(count)[-1]
        if self._verified == held:
            self._verified += known
        self.tokens += tokens
        return rows[-outputs:] if outputs else rows

    def drop_drafted(self) -> None:
        self.truncate(self._verified)

    def truncate(self, length: int) -> None:
        if length >= len(self.tokens):
            return
        if length >= self._base:
            self._sequences.cut(length - self._base)
            del self.tokens[length:]
            self._verified = min(self._verified, length)
        else:
            self.clear()

    def clear(self) -> None:
        super().clear()
        self._own_state = np.zeros_like(self._own_state)

    def _states_of(self, first: int, count: int) -> tuple[Rows, int]:
        """The states for these tokens, and how many of the first ones are the target's. The others
        get the head's latest state."""
        # A token is read with the state of the position before it.
        position = first - 1
        known = 0
        if position >= self._start and self._text:
            known = max(0, min(count, len(self._text) - position))
        if known and position + known > self._encoded:
            self.read()
        states = np.empty((count, self.width), np.float32)
        states[:known] = self._states[position : position + known] if known else 0.0
        states[known:] = self._own_state
        return states, known

    def _own_rows(self, count: int) -> Rows:
        return nextn_rows(self._native.handle, count, self.width)


class MtpCache(EagleCache):
    """The cache of the first MTP layer of a model opened with `mtp`."""

    @property
    def width(self) -> int:
        return self.model.output_width

    def _fields(self, target: Any) -> dict[str, Any]:
        return {"ctx_type": _MTP, "n_rs_seq": 0}  # the layer itself has attention only

    def _encode(self, inputs: Rows) -> None:
        self._states[self._encoded : self._encoded + len(inputs)] = inputs
