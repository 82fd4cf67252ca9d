"""Block diffusion heads as sources (DFlash, DSpark): several tokens in one pass.

A block is computed before anything is drawn. A DSpark head biases each row by its likeliest token
at the place before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.decoding.sampling import Row, Rows
from localspec.drafters.trained_head import DepthHead, FedHead, HeadCache


class BlockRows(HeadCache, Protocol):
    """The cache of such a head: `localspec.llama.block_cache.BlockCache`."""

    @property
    def most(self) -> int: ...

    @property
    def place(self) -> int:
        """Tokens of the text behind which it can draft; 0 where no state is known."""
        ...

    def read(self) -> None: ...

    def draft(self, last: int, count: int) -> Rows:
        """Logits of up to `count` tokens behind `last`; valid until the next draft."""
        ...


class BlockHead(FedHead, DepthHead):
    cache: BlockRows

    def __init__(
        self, cache: BlockRows, layers: Sequence[int], vocabulary: int, source: str
    ) -> None:
        super().__init__(cache, layers, vocabulary, source)
        self._rows: Rows | None = None  # of the draft behind the present text
        self._last, self._most = 0, 0

    def sync(
        self, context: Sequence[int], beyond: Sequence[int] = (), *, whole: bool = False
    ) -> None:
        self._rows = None
        super().sync(context, beyond, whole=whole)

    def catch_up(self, context: Sequence[int]) -> None:
        self.cache.read()

    def forget(self) -> None:
        self._rows = None
        super().forget()

    def room(self, context: Sequence[int]) -> int:
        if self.cache.place != len(context):
            return 0
        return min(self.cache.most, self.cache.capacity - len(context))

    def open(self, context: Sequence[int], most: int) -> None:
        most = min(most, self.room(context))
        if self._rows is not None and len(self._rows) < most:
            self._rows = None
        self._last, self._most = context[-1], most

    def has(self, depth: int) -> bool:
        return self._rows is not None and depth < len(self._rows)

    def at(self, depth: int) -> Row:
        if self._rows is None:
            self._rows = self._cut(self.cache.draft(self._last, self._most))
        row: Row = self._rows[depth]
        return row
