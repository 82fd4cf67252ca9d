"""What trained heads have in common as sources: they draft from hidden states of the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from localspec.decoding.sampling import Row, Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Drafted, DraftPasses
from localspec.drafters.draft_model import Cache, DraftModel
from localspec.drafters.model import DraftModelSource

MAX_LEAVES = 16


class HeadCache(Cache, Protocol):
    """The cache of a head that is fed the target's states of the whole text:
    `localspec.llama.head_cache.HeadCache`."""

    watch: Any
    beside: Sequence[Any]

    @property
    def model(self) -> Any: ...

    def close(self) -> None: ...

    def begin(self, prompt: Sequence[int]) -> None:
        """Another text: states of a common beginning stay."""
        ...

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        """The target's states of the latest tokens of a text before its last one."""
        ...

    def known_from(self) -> int: ...


class TrainedHead(DraftModel, ABC):
    """A head, kept in step with a session.

    Attributes:
        source: the name of what it serves.
        layers: of the target, whose hidden states it reads, in its order.
    """

    # What it says rests on states that only the target's passes bring.
    reads_along = False
    source: str
    layers: tuple[int, ...]

    def reads(self, prompt: Sequence[int], known: int) -> int:
        return 0

    @abstractmethod
    def take(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Hidden rows, see `localspec.decoding.sources.Source.committed`."""


class FedHead(TrainedHead):
    """One whose cache is fed the states of all the text.

    Args:
        layers: of the target, whose inputs it reads.
        vocabulary: tokens of the target.
        source: the name of what it serves.
    """

    cache: HeadCache

    def __init__(
        self, cache: HeadCache, layers: Sequence[int], vocabulary: int, source: str
    ) -> None:
        super().__init__(cache, vocabulary, window=None)
        self.source = source
        self.layers = tuple(layers)
        self._at_prompt = False

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
            self.catch_up(context)
        self._at_prompt = False

    @abstractmethod
    def catch_up(self, context: Sequence[int]) -> None:
        """Read what can be read of a text, all but its last token at most."""

    def forget(self) -> None:
        super().forget()
        self.cache.begin(())


class DepthHead(TrainedHead):
    """One that predicts several tokens at once from one state of the target.

    A row serves all candidates of a depth."""

    def unread(self, session: Session) -> int:
        return 1

    @property
    def branches(self) -> int:
        return MAX_LEAVES

    def open(self, context: Sequence[int], most: int) -> None:
        """Before the rows of a draft of up to so many tokens are asked for."""

    @abstractmethod
    def has(self, depth: int) -> bool:
        """Whether a row takes no pass: 0 for the next token's."""

    @abstractmethod
    def at(self, depth: int) -> Row:
        """Logits at a depth; valid until the next draft."""


class _Depths:
    """Implements `DraftPasses`."""

    def __init__(self, head: DepthHead) -> None:
        self._head = head
        self._depths: dict[int, int] = {}

    def knows(self, draft: Drafted, node: int) -> bool:
        depth = self._depths[node] = len(draft.path(node))
        return self._head.has(depth)

    def read(self, draft: Drafted, nodes: Sequence[int]) -> None:
        for node in nodes:
            depth = self._depths[node]
            if depth < self._head.room(draft.session.context) and not self._head.has(depth):
                self._head.at(depth)
                draft.read(1)

    def row(self, node: int) -> Row:
        return self._head.at(self._depths[node])


class TrainedHeadSource(DraftModelSource):
    """A head as a source; see `DraftModelSource`."""

    def __init__(self, head: TrainedHead, *, greedy: bool = False) -> None:
        super().__init__(head, name=head.source, greedy=greedy)
        self._head = head
        self.hidden = tuple(sorted(set(head.layers)))

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        super().committed(context, hidden)
        if hidden:
            self._head.take(context, hidden)

    def start(self, draft: Drafted) -> DraftPasses:
        if isinstance(self._head, DepthHead):
            self._head.open(draft.session.context, draft.depth)
            return _Depths(self._head)
        return super().start(draft)
