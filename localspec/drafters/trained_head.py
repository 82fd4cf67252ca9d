"""Trained heads as sources: they draft from hidden states of the target."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.sources import Cache, DraftContext
from localspec.drafters.draft_model import DraftModel
from localspec.llama.head_caches import BlockCache, EagleCache


class TrainedHead(DraftModel, ABC):
    """A head that follows a session. `layers`: target layers whose hidden states it reads, in its
    order; `vocabulary`: size of the target's; `name`: of the source."""

    # It needs hidden states, which exist only after the target's passes.
    reads_along = False

    def __init__(self, cache: Cache, layers: Sequence[int], vocabulary: int, name: str) -> None:
        super().__init__(cache, vocabulary, window=None)
        self.name, self.layers = name, tuple(layers)
        self.hidden = tuple(sorted(set(layers)))

    def reads(self, prompt: Sequence[int], known: int) -> int:
        return 0  # it reads after the target

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        super().committed(context, hidden)
        if hidden:
            self.take(context, hidden)

    @abstractmethod
    def take(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Receive hidden states; see `localspec.decoding.sources.Source.committed`."""


class FedHead(TrainedHead):
    """A head whose cache is fed the hidden states of the whole text."""

    cache: EagleCache | BlockCache
    _at_prompt = False

    def begin(self, prompt: Sequence[int]) -> None:
        self._agreed = 0
        self.cache.begin(prompt)
        self.sync(prompt)
        self._at_prompt = True

    def take(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        held = len(self.cache.tokens)
        rows = [hidden[i] for i in self.layers]
        self.cache.feed(context, rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1))
        if len(self.cache.tokens) != held:
            self._agreed = 0
        if self._at_prompt and len(context) <= self.cache.capacity:
            self.cache.read()
            missing = context[len(self.cache.tokens) : -1]
            if missing:
                self.cache.extend(missing, 0)
        self._at_prompt = False

    def forget(self) -> None:
        super().forget()
        self.cache.begin(())


class DepthHead(TrainedHead):
    """A head that predicts several tokens at once from one state of the target.

    One row serves all candidates of a depth."""

    cache: Any  # a BlockCache, or a `localspec.drafters.medusa.MedusaCache`

    def unread(self, context: Sequence[int]) -> int:
        return 1  # a draft costs the same after any number of unread tokens

    def room(self, context: Sequence[int]) -> int:
        if self.cache.place != len(context):
            return 0
        most: int = min(self.cache.most, self.cache.capacity - len(context))
        return most

    # A row depends on the length of a path only, and is valid until the next draft.

    def read(self, draft: DraftContext, path: list[int]) -> int:
        if len(path) >= self.room(draft.session.context):
            return 0
        self.row(path)
        return 1


class EagleHead(FedHead):
    """An EAGLE-3 head (Li et al. 2025), or an MTP layer (DeepSeek-V3, section 2.2), used like a
    draft model. Accepted tokens are read again with the target's hidden states."""

    cache: EagleCache

    def drop_drafted(self) -> None:
        self.cache.drop_drafted()


class BlockHead(FedHead, DepthHead):
    """A block diffusion head (DFlash, DSpark): several tokens in one pass, computed before any is
    drawn. A DSpark head biases each row by its likeliest token at the position before."""

    cache: BlockCache
    _last, _most = 0, 0

    def drop_drafted(self) -> None:
        self._rows = None

    def start(self, draft: DraftContext) -> None:
        context = draft.session.context
        self._last, self._most = context[-1], min(draft.depth, self.room(context))

    def knows(self, path: list[int]) -> bool:
        return self._rows is not None and len(path) < len(self._rows)

    def row(self, path: list[int]) -> Row:
        if self._rows is None:
            self._rows = self._cut(self.cache.draft(self._last, self._most))
        row: Row = self._rows[len(path)]
        return row
