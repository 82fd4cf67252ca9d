"""The KV cache of a block diffusion head (DFlash, DSpark), which drafts a block in one pass.

Keys and values are computed from inputs of some target layers (`feed`). A draft is a pass over
the last token and mask tokens, whose cells are dropped again (llama.cpp: src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import Batch, chain
from localspec.llama.head_cache import MAX_PASS, HeadCache
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

MAX_BLOCK = 32
"""Most tokens of a block: llama.cpp's graph of a DSpark head has no room for more."""


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
    """A `HeadCache` that drafts a block. `policy.calibration` times `extend` and `truncate`."""

    max_draft = 64

    def __init__(self, model: Model, target: Any, options: ModelOptions, shape: BlockShape) -> None:
        super().__init__(model, target, options)
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
        All states but that of the last token have to be known."""
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

    def _rewind(self, length: int) -> None:
        self.truncate(length)

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
        """Run a draft, for its time, and repeat its first row."""
        row = self.draft(tokens[0], self.most)[0]
        self.tokens += tokens
        return np.broadcast_to(row, (outputs, len(row)))
