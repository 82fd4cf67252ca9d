"""A trained head as a source: it drafts from what the target made of the text.

An EAGLE-3 head (Li et al. 2025), or an MTP layer that the target was trained with (DeepSeek-V3,
section 2.2). It is asked as a draft model is, with the same trees (EAGLE-2: Li et al. 2024); what
differs is that it reads hidden states of the target, which come with every pass of that, and that
accepted tokens are read again with those in place of its own guesses at them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.drafters.draft_model import BranchingCache, DraftModel
from localspec.drafters.model import DraftModelSource


class StateCache(BranchingCache, Protocol):
    """The cache of a head: `localspec.llama.eagle_cache.EagleCache`, and for MTP layers
    `localspec.llama.mtp_cache.MtpCache`.

    Attributes:
        watch, beside: see there.
    """

    watch: Any
    beside: Sequence[Any]

    @property
    def model(self) -> Any:
        """The weights, to be closed behind it."""
        ...

    def close(self) -> None:
        """Free it."""
        ...

    def begin(self, prompt: Sequence[int]) -> None:
        """Another text: what is known of the target's states in what both begin with stays."""
        ...

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        """Take what the target made of the latest tokens of a text before its last one."""
        ...

    def look(self, context: Sequence[int], count: int) -> Rows:
        """Logits after so many tokens before the last one of a text; nothing of it stays."""
        ...

    def known_from(self) -> int:
        """The first token whose state is known."""
        ...

    def drop_drafted(self) -> None:
        """Drop what was read without the target's states."""
        ...


class Head(DraftModel):
    """A head's cache, kept in step with a session.

    Args:
        cache: of the head.
        layers: of the target, whose inputs it reads.
        vocabulary: tokens of the target.
        source: the name of what it serves.
    """

    # The state of a token that it did not propose is known when the one before was read.
    reads_along = False

    def __init__(
        self, cache: StateCache, layers: Sequence[int], vocabulary: int, source: str = "eagle"
    ) -> None:
        super().__init__(cache, vocabulary)
        self.source = source
        self.cache: StateCache = cache
        self.layers = tuple(layers)
        self._at_prompt = False

    def begin(self, prompt: Sequence[int]) -> None:
        """Only what it has of another text is dropped: it reads a prompt once the target has."""
        self._agreed = 0
        self.cache.begin(prompt)
        self.sync(prompt)
        self._at_prompt = True

    def sync(
        self, context: Sequence[int], beyond: Sequence[int] = (), *, whole: bool = False
    ) -> None:
        if self._grown:
            self._settle(context)
        self.cache.drop_drafted()
        super().sync(context, beyond, whole=whole)

    def take(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Hidden rows of the latest tokens, see `localspec.decoding.interfaces.Source.committed`;
        a prompt is read at once."""
        held = len(self.cache.tokens)
        rows = [hidden[i] for i in self.layers]
        self.cache.feed(context, rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1))
        if len(self.cache.tokens) != held:
            self._agreed = 0
        missing = context[len(self.cache.tokens) : -1]
        if self._at_prompt and missing and len(context) <= self.cache.capacity:
            self.cache.extend(missing, 0)
        self._at_prompt = False

    def forget(self) -> None:
        super().forget()
        self.cache.begin(())

    def look(self, context: Sequence[int], most: int) -> Rows | None:
        """Logits after up to so many tokens before the last one; None where states are lacking, or
        there is no room."""
        known = len(context) - 2 - self.cache.known_from()
        room = self.cache.capacity - len(self.cache.tokens)
        count = min(most, known, room)
        return self.cache.look(context, count) if count > 0 else None


class HeadSource(DraftModelSource):
    """Implements `localspec.decoding.auto_sources.ModelSource`.

    Args:
        head: its cache, shared.
        greedy: as of `DraftModelSource`.
    """

    def __init__(self, head: Head, *, greedy: bool = False) -> None:
        super().__init__(head, name=head.source, greedy=greedy)
        self._head = head
        self.hidden = tuple(sorted(head.layers))

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        super().committed(context, hidden)
        if hidden:
            self._head.take(context, hidden)

    def _latest(self, session: Session, most: int) -> Rows | None:
        return self._head.look(session.context, most)
