"""Retrieval: continuations of the text's longest suffix in learned texts.

He et al. 2023 (REST), section 3; continuations most frequent first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from localspec.decoding.sources import Prediction
from localspec.drafters.ngram import Chain, CopyingSource, features_of
from localspec.retrieval.datastore import LONGEST, Datastore, Snapshot, StoredOccurrences

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59, 0.0),
    "sampled": (-1.12, 0.48, 0.95, 0.3, 0.0),
}
"""Those of the n-gram drafter, and one for the number of occurrences."""


class _Position:
    """A position after the text and hypothetical tokens, the last of which are its `tail`; looked
    up lazily."""

    passed = 0

    def __init__(
        self,
        snapshot: Snapshot,
        size: int,
        tail: list[int],
        streak: int,
        known: StoredOccurrences | None = None,
    ) -> None:
        self._snapshot, self._size, self.tail, self._streak = snapshot, size, tail, streak
        # Occurrences of the longest suffix, then of shorter ones; each lookup costs the same.
        self.suffixes = Chain(snapshot.longest(tail))
        self._known = [] if known is None else [known]
        self.chain = Chain(self._predictions())

    @cached_property
    def best(self) -> StoredOccurrences | None:
        return next((o for o in chain(self._known, self.suffixes.skip(0)) if o.followers), None)

    def advance(self, token: int) -> _Position:
        known, streak = None, 0
        if self.best is not None:
            followers = self.best.followers
            known = followers.get(token)
            streak = self._streak + 1 if token == next(iter(followers)) else 0
        tail = [*self.tail[1 - LONGEST :], token]
        return _Position(self._snapshot, self._size, tail, streak, known)

    def _predictions(self) -> Iterator[Prediction]:
        occurrences, streak = self.best, self._streak
        while occurrences is not None and occurrences.followers:
            token, following = next(iter(occurrences.followers.items()))
            if token >= self._size:  # ids from a damaged file must not reach the model
                return
            length, times = occurrences.length, following.total
            common = features_of(length, times, occurrences.total, min(streak, 31))
            features = (*common, min(1.0, math.log2(times) / 10))
            yield Prediction(token, features, min(4.0, float(length.bit_length())))
            occurrences, streak = following, streak + 1


class RetrievalSource(CopyingSource):
    """Copies from learned texts of the target's vocabulary, as they are when an answer begins."""

    name = "retrieval"
    priors = PRIORS

    def __init__(self, datastore: Datastore) -> None:
        self._snapshot, self._size = datastore.now, datastore.size

    def position_after(self, context: Sequence[int], streak: int) -> _Position:
        return _Position(self._snapshot, self._size, list(context[-LONGEST:]), streak)

    def alternatives(self, position: Any, most: int) -> list[tuple[int, float]]:
        found: dict[int, float] = {}
        for occurrences in position.suffixes.skip(0):
            for token, following in occurrences.followers.items():
                if len(found) == most:
                    return list(found.items())
                if token < self._size:
                    chance = min(0.5, following.total / (max(2, occurrences.total) + 1))
                    found.setdefault(token, chance)
        return list(found.items())
