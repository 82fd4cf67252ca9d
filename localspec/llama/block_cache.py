"""The KV cache of a block diffusion head (DFlash, DSpark), which says a whole block in one pass.

Such a head (DFlash: z-lab; DSpark adds a Markov chain over the block's tokens) has layers of its
own that attend to the text: keys and values are made of what went into some of the target's layers
(`feed`). A draft is one pass over the last token and masks behind it; nothing of it stays.

llama.cpp takes states and drafts as two kinds of batch of the same context: rows without tokens are
written to the cache, tokens are computed over it (src/models/dflash.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import Cancelled, NativeError
from localspec.llama.batch import Batch
from localspec.llama.head_cache import PIECE, HeadCache
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions

MOST = 32
"""Tokens of a block at most: behind more of them, llama.cpp's graph of a DSpark head would have
more nodes than there is room for (`graph_max_nodes`)."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What a pass of a head is made of.

    Attributes:
        size: tokens of a block, as it was trained.
        mask: the token that stands for what is to be said.
        anchored: whether the row of the last token of the text says the first one of the draft;
            else each mask's row says the token at its own place.
        causal: whether tokens of a block see only those before them.
    """

    size: int
    mask: int
    anchored: bool = False
    causal: bool = False

    @property
    def most(self) -> int:
        """Tokens of a draft."""
        return min(self.size, MOST) - (not self.anchored)

    def tokens(self, rows: int) -> int:
        """The least block that says so many."""
        return rows + (not self.anchored)


class BlockCache(HeadCache):
    """What a head (architecture dflash) has been told of a text; see `HeadCache`.

    `extend` and `truncate` serve `localspec.policy.calibration.MeasuredCache`: a draft costs what
    it costs, however many tokens are read.
    """

    sequences = 1
    max_draft = 64

    def __init__(self, model: Model, target: Any, options: ModelOptions, shape: BlockShape) -> None:
        self.shape = shape
        super().__init__(model, target, options)

    def _set_up(self) -> None:
        self._native.see_all(all_of_a_pass=not self.shape.causal)
        self._batch = Batch(PIECE, 1)

    @property
    def most(self) -> int:
        return self.shape.most

    @property
    def place(self) -> int:
        """Tokens of the text behind which it can draft; 0 where no state is known."""
        return len(self._text) + 1 if len(self._text) > self._start else 0

    def read(self) -> None:
        self._take_in()

    def draft(self, last: int, count: int) -> Rows:
        """Logits of the next tokens behind a text whose states are known but for the last token's:
        so many of them at most, [tokens, vocabulary], valid until the next draft."""
        self._take_in()
        return self._block(last, count)

    def _block(self, last: int, count: int) -> Rows:
        size = self.shape.tokens(min(count, self.most))
        tokens = [last, *[self.shape.mask] * (size - 1)]
        rows = self._decode(self._batch.chain(tokens, size), size)
        self._drop_failed()
        return rows if self.shape.anchored else rows[1:]

    def _take(self, inputs: Rows) -> None:
        try:
            self._native.decode(self._batch.rows(inputs))
        except (Cancelled, NativeError):
            self._drop_failed()
            raise
        self.tokens += self._text[self._made : self._made + len(inputs)]

    def _drop_failed(self) -> None:
        """Nothing but what the target has read stays."""
        self._sequences.cut(self._made - self._base)

    def _go_back(self, length: int) -> None:
        self.truncate(length)

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on, and what is known of them."""
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
        """The cost of a draft."""
        self.tokens += tokens
        row = self._block(tokens[0], self.most)[0]
        return np.broadcast_to(row, (outputs, len(row)))
