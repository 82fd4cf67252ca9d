"""Block diffusion heads as sources (DFlash, DSpark): several tokens in one pass.

A block is computed before anything is drawn. A DSpark head biases each row by its likeliest token
at the place before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.decoding.sampling import Row, Rows
from localspec.drafters.trained_head import DepthHead, FedHead

if TYPE_CHECKING:
    from localspec.llama.block_cache import BlockCache


class BlockHead(FedHead, DepthHead):
    cache: BlockCache
    _rows: Rows | None = None  # of the draft behind the present text
    _last, _most = 0, 0

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
