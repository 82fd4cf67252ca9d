"""Retrieval: what followed the longest ending of the text that was learned.

He et al. 2023 (REST), section 3; continuations most frequent first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count

from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.drafters.ngram import Streak
from localspec.policy.acceptance_estimator import logit
from localspec.retrieval.datastore import LONGEST, Datastore, Snapshot, StoredOccurrences

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59, 0.0),
    "sampled": (-1.12, 0.48, 0.95, 0.3, 0.0),
}
"""Those of the n-gram, and of the count. Features: see `_features`."""


class _Place:
    """The end of the text and what was imagined behind it; looked up on demand.

    Attributes:
        tail: the last tokens.
        streak: tokens in a row, up to here, that were predicted.
        committed: whether nothing is imagined.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        tail: list[int],
        streak: int,
        *,
        known: StoredOccurrences | None = None,
        committed: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._searched = snapshot.longest(tail)
        self._endings: list[StoredOccurrences] = []
        self._known = known
        self.tail = tail
        self.streak = streak
        self.committed = committed

    def endings(self) -> Iterator[StoredOccurrences]:
        """Where the longest ending occurs, and shorter ones, on demand: each takes equally long."""
        for number in count():
            while number >= len(self._endings):
                found = next(self._searched, None)
                if found is None:
                    return
                self._endings.append(found)
            yield self._endings[number]

    @cached_property
    def best(self) -> tuple[StoredOccurrences, dict[int, StoredOccurrences]] | None:
        if self._known is not None:
            followers = self._known.followers()
            if followers:
                return self._known, followers
        for occurrences in self.endings():
            followers = occurrences.followers()
            if followers:
                return occurrences, followers
        return None

    def followed(self, token: int) -> _Place:
        known, streak = None, 0
        if self.best is not None:
            followers = self.best[1]
            known = followers.get(token)
            streak = self.streak + 1 if token == next(iter(followers)) else 0
        return _Place(self._snapshot, [*self.tail[1 - LONGEST :], token], streak, known=known)


class RetrievalSource(LookupSource):
    """Copies what followed the longest ending of the text that was learned, with q = 1.

    Args:
        datastore: of the target's vocabulary; what is in it when an answer begins is used.
    """

    name = "retrieval"
    priors = PRIORS

    def __init__(self, datastore: Datastore) -> None:
        self._snapshot, self._size = datastore.now, datastore.size
        self._streak = Streak()

    def begin(self, prompt: Sequence[int]) -> None:
        self._streak.begin()

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._streak.committed(context)

    def place(self, session: Session) -> _Place:
        self._streak.at(len(session.context))
        tail = list(session.context[-LONGEST:])
        return _Place(self._snapshot, tail, self._streak.length, committed=True)

    def follow(self, place: _Place, token: int) -> _Place:
        return place.followed(token)

    def expected(self, place: _Place) -> Iterator[Prediction]:
        predictions = self._predictions(place)
        return self._streak.noted(predictions) if place.committed else predictions

    def _predictions(self, place: _Place) -> Iterator[Prediction]:
        best, streak = place.best, place.streak
        while best is not None:
            occurrences, followers = best
            token, following = next(iter(followers.items()))
            if token >= self._size:  # damage on disk must not reach the model
                return
            features = _features(
                occurrences.length, following.total, occurrences.total, min(streak, 31)
            )
            yield Prediction(token, features, min(4.0, float(occurrences.length.bit_length())))
            followers = following.followers()
            best = (following, followers) if followers else None
            streak += 1

    def others(self, place: _Place, most: int) -> list[tuple[int, float]]:
        found: dict[int, float] = {}
        for occurrences in place.endings():
            for token, following in occurrences.followers().items():
                if token < self._size:
                    chance = min(0.5, following.total / (max(2, occurrences.total) + 1))
                    found.setdefault(token, chance)
            if len(found) >= most:
                break
        return list(found.items())[:most]


def _features(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float, float]:
    """As those of the n-gram, and the count."""
    return (
        1.0,
        math.log2(length),
        logit(count / (total + 1)),
        math.log2(streak + 1),
        min(1.0, math.log2(count) / 10),
    )
