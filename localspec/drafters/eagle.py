"""EAGLE-3 heads (Li et al. 2025) and MTP layers (DeepSeek-V3, section 2.2) as sources.

Used as a draft model is; accepted tokens are read again with the target's hidden states in place of
the head's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.drafters.trained_head import FedHead

if TYPE_CHECKING:
    from localspec.llama.eagle_cache import EagleCache


class EagleHead(FedHead):
    cache: EagleCache

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
