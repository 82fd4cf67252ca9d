"""The KV cache of a block diffusion head (DFlash, DSpark), which drafts a block in one pass.

Keys and values are made from inputs of some target layers (`feed`). A draft is a pass over the
last token and masks, of which nothing stays (llama.cpp: src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import Batch, chain
from localspec.llama.head_cache import PIECE, HeadCache
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

MOST = 32
"""Most tokens of a block: llama.cpp's graph of a DSpark head has no room for more."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """`size`: tokens of a block in training; `mask`: the mask token. `anchored`: the last token's
    row predicts the first drafted one, else each mask's row predicts its own token. `causal`:
    tokens of a block see only earlier ones."""

    size: int
    mask: int
    anchored: bool = False
    causal: bool = False


class BlockCache(HeadCache):
    """See `HeadCache`. `extend` and `truncate` also serve `policy.calibration`."""

    max_draft = 64

    def __init__(self, model: Model, target: Any, options: ModelOptions, shape: BlockShape) -> None:
        super().__init__(model, target, options)
        self.shape = shape
        self._native.see_all(all_of_a_pass=not shape.causal)
        self._batch = Batch(PIECE, 1)

    @property
    def most(self) -> int:
        """Tokens of a draft."""
        return min(self.shape.size, MOST) - (not self.shape.anchored)

    @property
    def place(self) -> int:
        return len(self._text) + 1 if len(self._text) > self._start else 0

    def read(self) -> None:
        self._take_in()

    def draft(self, last: int, count: int) -> Rows:
        """Logits of up to `count` tokens that follow, [tokens, vocabulary], valid until the next
        draft. All states but the last token's are known."""
        self._take_in()
        size = min(count, self.most) + (not self.shape.anchored)
        tokens = [last, *[self.shape.mask] * (size - 1)]
        part = chain(tokens, size, self._made - self._base)
        rows = self._decode(self._batch.fill([part]), size)
        self._drop_failed()
        return rows if self.shape.anchored else rows[1:]

    def _take(self, inputs: Rows) -> None:
        try:
            self._native.run(self._batch.rows(inputs))
        except (Cancelled, NativeError):
            self._drop_failed()
            raise
        self.tokens += self._text[self._made : self._made + len(inputs)]

    def _drop_failed(self) -> None:
        self._sequences.cut(self._made - self._base)

    def _go_back(self, length: int) -> None:
        self.truncate(length)

    def truncate(self, length: int) -> None:
        if length >= self._made:
            del self.tokens[length:]  # that were measured with
        elif length <= self._start:
            self.clear()
        else:
            self._queue.clear()
            self._sequences.cut(length - self._base)
            del self.tokens[length:], self._text[length:]
            self._made = length

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Costs what a draft does."""
        row = self.draft(tokens[0], self.most)[0]
        self.tokens += tokens
        return np.broadcast_to(row, (outputs, len(row)))
