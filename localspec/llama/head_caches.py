"""KV caches of trained heads, which read hidden states of the target."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from localspec.decoding.interfaces import HIDDEN_BEFORE
from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import Batch, chain
from localspec.llama.hidden import nextn_rows
from localspec.llama.model import Model
from localspec.llama.native_context import NativeCache, NativeContext, failure
from localspec.llama.options import ModelOptions
from localspec.llama.sequences import Sequences, shared_prefix

MAX_PASS = 72
"""Most tokens of a pass, and rows of logits."""
MAX_BLOCK = 32
"""Most tokens of a block: llama.cpp's graph for a DSpark head has no room for more."""
_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP


class HeadCache(NativeCache):
    """The KV cache of a trained head, fed with hidden states of the target.

    `tokens` are read from the beginning of the text; positions with unknown states are skipped.
    `fields`: see `NativeContext`; `ctx_other` is the target's llama_context, whose embeddings and
    output matrix a head may use, and which must outlive the cache.
    """

    recurrent = False
    offset = 0
    """Distance from the first known state to the first token that can be read."""

    def __init__(self, model: Model, options: ModelOptions, **fields: Any) -> None:
        super().__init__(model)
        self._native = NativeContext(model, options, rows=MAX_PASS, batch=MAX_PASS, **fields)
        self.capacity = min(self._native.cells, options.context or self._native.cells)
        self._sequences = Sequences(self._native.memory, 1)
        self._pending: list[Rows] = []  # layer inputs that are not encoded yet
        self._forget()

    def _forget(self) -> None:
        self._text: list[int] = []  # tokens with known states, from `_start` on
        self._start = 0  # the first position with a known state
        self._encoded = 0  # the first position that is not encoded yet
        self._base = 0  # the token at position 0 of the native cache
        self._pending.clear()

    def checkpoint(self) -> None:
        """Do nothing: an attention cache can be truncated anywhere."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Start another text, keeping the states of its common prefix."""
        agreed = shared_prefix(self._text, prompt)
        if agreed == len(self._text):
            return
        if agreed <= self._start:
            self.clear()
            return
        self.read()
        self.truncate(agreed)
        del self._text[agreed:]
        self._encoded = agreed

    @abstractmethod
    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, with everything computed for them."""

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
        self._sequences.cut(0)
        self._forget()
        self._start = self._encoded = position
        self._base = position + self.offset
        self.tokens[:] = context[: self._base]
        self._text = list(context[: len(context) - 1])

    def clear(self) -> None:
        self._sequences.cut(0)
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


class EagleCache(HeadCache):
    """The KV cache of an EAGLE-3 head or an MTP layer, which reads hidden states with the tokens;
    `tokens` includes drafted ones.

    At position P an EAGLE-3 head (Li et al. 2025, section 3) reads the token at P + 1 and a state
    of P, and predicts the next token. The state comes from inputs of three target layers (`feed`)
    or, after a drafted token, from the head's own last pass. The first token is not read. An MTP
    layer (DeepSeek-V3, section 2.2) reads the same pairs with the target's output state; its
    positions differ by one, which rotations hide. `mtp`: the first MTP layer of a model opened with
    `mtp`.
    """

    max_draft = MAX_PASS - 1
    offset = 1

    def __init__(
        self, model: Model, target: Any, options: ModelOptions, *, mtp: bool = False
    ) -> None:
        self._mtp, self.width = mtp, model.output_width if mtp else model.width
        # The layer itself has attention only.
        fields = {"ctx_type": _MTP, "n_rs_seq": 0} if mtp else {"ctx_other": target}
        super().__init__(model, options, **fields)
        llama_cpp_ext.llama_set_embeddings_nextn(self._native.handle, True, True)
        self._batch = Batch(MAX_PASS, 1, self.width)
        # By position; memory is allocated when written.
        self._states = np.empty((self.capacity, self.width), np.float32)
        self._own_state = np.zeros(self.width, np.float32)  # the head's state after its last token

    def _forget(self) -> None:
        super()._forget()
        self._verified = 0  # how many of `tokens` were read with the target's states

    def _restart_at(self, context: Sequence[int], position: int) -> None:
        super()._restart_at(context, position)
        self._verified = len(self.tokens)

    def _encode(self, inputs: Rows) -> None:
        count, states = len(inputs), inputs
        if not self._mtp:
            batch = self._batch.rows(inputs, outputs=True)
            status = llama_cpp.llama_encode(self._native.handle, batch)
            if status:
                raise failure(status, count)
            states = self._own_rows(count)
        self._states[self._encoded : self._encoded + count] = states

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
        """The states for these tokens, and how many from the first on are the target's. The others
        get the head's latest state."""
        # A token is read with the state of the position before it.
        position = first - 1
        known = 0
        if position >= self._start:
            known = max(0, min(count, len(self._text) - position))
        if known and position + known > self._encoded:
            self.read()
        states = np.empty((count, self.width), np.float32)
        states[:known] = self._states[position : position + known] if known else 0.0
        states[known:] = self._own_state
        return states, known

    def _own_rows(self, count: int) -> Rows:
        return nextn_rows(self._native.handle, count, self.width)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How a head drafts a block.

    Attributes:
        size: tokens of a block in training.
        mask: the mask token.
        anchored: the last token's row predicts the first drafted token; otherwise each mask's row
            predicts its own token.
        causal: tokens of a block see only earlier ones.
    """

    size: int
    mask: int
    anchored: bool = False
    causal: bool = False


class BlockCache(HeadCache):
    """The KV cache of a block diffusion head (DFlash, DSpark), which drafts a block in one pass.

    Keys and values are computed from inputs of some target layers (`feed`). A draft is a pass over
    the last token and mask tokens, whose cells are dropped again (src/models/dflash.cpp of
    llama.cpp). `policy.calibration` times `extend` and `truncate`.
    """

    max_draft = 64

    def __init__(self, model: Model, target: Any, options: ModelOptions, shape: BlockShape) -> None:
        super().__init__(model, options, ctx_other=target)
        self.shape = shape
        self._native.set_bidirectional(on=not shape.causal)
        self._batch = Batch(MAX_PASS, 1)

    @property
    def most(self) -> int:
        """Most tokens of a draft."""
        return min(self.shape.size, MAX_BLOCK) - (not self.shape.anchored)

    @property
    def place(self) -> int:
        return len(self._text) + 1 if len(self._text) > self._start else 0

    def draft(self, last: int, count: int) -> Rows:
        """Logits of up to `count` next tokens, [tokens, vocabulary], valid until the next draft.
        All states except that of the last token must be known."""
        self.read()
        size = min(count, self.most) + (not self.shape.anchored)
        tokens = [last, *[self.shape.mask] * (size - 1)]
        part = chain(tokens, size, self._encoded - self._base)
        rows = self._decode(self._batch.fill([part]), size)
        self._drop_failed()
        return rows if self.shape.anchored else rows[1:]

    def _encode(self, inputs: Rows) -> None:
        try:
            self._native.run(self._batch.rows(inputs))
        except (Cancelled, NativeError):
            self._drop_failed()
            raise
        self.tokens += self._text[self._encoded : self._encoded + len(inputs)]

    def _drop_failed(self) -> None:
        self._sequences.cut(self._encoded - self._base)

    def truncate(self, length: int) -> None:
        if length >= self._encoded:
            del self.tokens[length:]  # from `extend`, which stores no states
        elif length <= self._start:
            self.clear()
        else:
            self._pending.clear()
            self._sequences.cut(length - self._base)
            del self.tokens[length:], self._text[length:]
            self._encoded = length

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Run a draft, to be timed, and repeat its first row."""
        row = self.draft(tokens[0], self.most)[0]
        self.tokens += tokens
        return np.broadcast_to(row, (outputs, len(row)))
