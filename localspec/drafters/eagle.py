"""A trained head as a source: it drafts from what the target made of the text.

An EAGLE-3 head (Li et al. 2025), or an MTP layer that the target was trained with (DeepSeek-V3,
section 2.2). It is asked as a draft model is, with the same trees (EAGLE-2: Li et al. 2024); what
differs is that it reads hidden states of the target, which come with every pass of that, and that
accepted tokens are read again with those in place of its own guesses at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.drafters.draft_model import BranchingCache
from localspec.drafters.trained_head import FedHead, HeadCache, TrainedHeadSource


class StateCache(HeadCache, BranchingCache, Protocol):
    """The cache of a head: `localspec.llama.eagle_cache.EagleCache`, and for MTP layers
    `localspec.llama.mtp_cache.MtpCache`."""

    def look(self, context: Sequence[int], count: int) -> Rows:
        """Logits after so many tokens before the last one of a text; nothing of it stays."""
        ...

    def drop_drafted(self) -> None:
        """Drop what was read without the target's states."""
        ...


class EagleHead(FedHead):
    """A head's cache, kept in step with a session; see `FedHead`."""

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

    def look(self, context: Sequence[int], most: int) -> Rows | None:
        """Logits after up to so many tokens before the last one; None where states are lacking, or
        there is no room."""
        known = len(context) - 2 - self.cache.known_from()
        room = self.cache.capacity - len(self.cache.tokens)
        count = min(most, known, room)
        return self.cache.look(context, count) if count > 0 else None


class HeadSource(TrainedHeadSource):
    """Implements `localspec.decoding.auto_sources.ModelSource`.

    Args:
        head, greedy: see `TrainedHeadSource`.
    """

    _head: EagleHead

    def __init__(self, head: EagleHead, *, greedy: bool = False) -> None:
        super().__init__(head, greedy=greedy)

    def _latest(self, session: Session, most: int) -> Rows | None:
        return self._head.look(session.context, most)
