"""Retrieval: what followed the text's ending in all that was learned, see `localspec.retrieval`.

He et al. 2023 (REST), section 3: the longest ending that stands in the datastore, and the ways in
which the text went on there as a tree, the most frequent first (as SuffixDecoding: Oliaro et al.
2024, section 3, which keeps the shape that is expected to bring most).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.streak import Streak
from localspec.policy.acceptance_estimator import logit
from localspec.retrieval.datastore import LONGEST, Datastore, Snapshot, StoredOccurrences

PRIORS = {
    "greedy": (-0.74, 0.36, 1.11, 0.59, 0.0),
    "sampled": (-1.12, 0.48, 0.95, 0.3, 0.0),
}
"""Those of the n-gram (see `localspec.drafters.ngram`) as far as the features are the same; how
much a count says beside them is learned. Features: see `_features`."""


class _Place:
    """Where the text, and what was imagined behind it, ends; looked up when it is asked for.

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
        """Where the longest ending occurs, and shorter ones, as far as it is asked for: mostly the
        longest is enough, and each takes as long as the one before."""
        for number in count():
            while number >= len(self._endings):
                found = next(self._searched, None)
                if found is None:
                    return
                self._endings.append(found)
            yield self._endings[number]

    @cached_property
    def best(self) -> tuple[StoredOccurrences, dict[int, StoredOccurrences]] | None:
        """The longest ending that anything followed, and what did, most frequent first."""
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
        """The place one token further."""
        known, streak = None, 0
        if self.best is not None:
            followers = self.best[1]
            known = followers.get(token)
            streak = self.streak + 1 if token == next(iter(followers)) else 0
        return _Place(self._snapshot, [*self.tail[1 - LONGEST :], token], streak, known=known)


class RetrievalSource:
    """Copies what followed the longest ending of the text that was learned, several for a tree.

    Implements `localspec.decoding.auto_sources.LookupSource`. Its tokens are chosen, not drawn: q
    is 1 on each. It runs no model: looking up takes some 30 µs for each segment of the datastore.

    Args:
        datastore: of the target's vocabulary; what is in it when an answer begins is used.
        shortest: by name, endings of fewer tokens are not worth proposing.
    """

    priors: Mapping[str, tuple[float, ...]] = PRIORS
    hidden: tuple[int, ...] = ()
    native_seconds = 0.0
    name = "retrieval"

    def __init__(self, datastore: Datastore, *, shortest: int = 2) -> None:
        self._snapshot, self._size = datastore.now, datastore.size
        self._shortest = shortest
        self._streak = Streak()

    def begin(self, prompt: Sequence[int]) -> None:
        self._streak.begin()

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        """As many branches as the plan is wide: the best, and from there where most others are."""
        tip = tree.tip()
        level = len(tree.path(tip))
        tail = [*session.context[-LONGEST:], *tree.path_tokens(tip)]
        branches: list[_Branch] = []
        order = count()
        for occurrences in self._snapshot.longest(tail):
            if occurrences.length < self._shortest or len(branches) >= plan.width:
                break
            known = {branch.token for branch in branches}
            # Those of longer endings first, whatever their counts.
            rank = -occurrences.length
            branches += (
                _Branch(rank, -below.total, next(order), token, below, tip)
                for token, below in self._usable(occurrences)
                if token not in known
            )
        heapify(branches)
        for _ in range(plan.width):
            if not branches:
                return
            rank, _, _, token, following, node = heappop(branches)
            while True:
                node = tree.add(token, node, self.name)
                followers = self._usable(following)
                if not followers or tree.depths[node] - level >= plan.depth:
                    break
                for other, below in followers[1:]:
                    branch = _Branch(rank, -below.total, next(order), other, below, node)
                    heappush(branches, branch)
                token, following = followers[0]

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self._streak.committed(context)

    # In `auto`.

    def kind(self, session: Session) -> str:
        return "greedy" if session.sampler.greedy else "sampled"

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
            if token >= self._size:
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
            for token, following in self._usable(occurrences):
                chance = min(0.5, following.total / (max(2, occurrences.total) + 1))
                found.setdefault(token, chance)
            if len(found) >= most:
                break
        return list(found.items())[:most]

    def _usable(self, occurrences: StoredOccurrences) -> list[tuple[int, StoredOccurrences]]:
        """What followed, without what is no token: damage on disk must not reach the model."""
        return [each for each in occurrences.followers().items() if each[0] < self._size]


class _Branch(NamedTuple):
    """What may be added to a tree; the least first."""

    rank: int
    frequency: int
    number: int
    token: int
    following: StoredOccurrences
    node: int


def _features(
    length: int, count: int, total: int, streak: int
) -> tuple[float, float, float, float, float]:
    """Of a token that followed an ending of so many tokens `count` times, where anything did so
    `total` times, behind so many predictions in a row that were right."""
    return (
        1.0,
        math.log2(length),
        logit(count / (total + 1)),
        math.log2(streak + 1),
        min(1.0, math.log2(count) / 10),
    )
