"""EAGLE-3 heads (Li et al. 2025) and MTP layers (DeepSeek-V3, section 2.2) as sources.

Used as a draft model is; accepted tokens are read again with the target's hidden states in place of
the head's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.drafters.draft_model import BranchingCache
from localspec.drafters.trained_head import FedHead, HeadCache


class StateCache(HeadCache, BranchingCache, Protocol):
    """The cache of a head: `localspec.llama.eagle_cache.EagleCache`."""

    def drop_drafted(self) -> None:
        """Drop what was read without the target's states."""
        ...


class EagleHead(FedHead):
    cache: StateCache

    def __init__(
        self, cache: StateCache, layers: Sequence[int], vocabulary: int, source: str = "eagle"
    ) -> None:
        super().__init__(cache, layers, vocabulary, source)

    def sync(
        self, context: Sequence[int], beyond: Sequence[int] = (), *, whole: bool = False
    ) -> None:
        if self._grown:
            self._settle(context)
        self.cache.drop_drafted()
        super().sync(context, beyond, whole=whole)

    def catch_up(self, context: Sequence[int]) -> None:
        missing = context[len(self.cache.tokens) : -1]
        if missing:
            self.cache.extend(missing, 0)
