"""Where the lookup sources are behind each node of a draft tree, and what they expect there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from localspec.decoding.auto_sources import LookupSource, Prediction
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT
from localspec.planning.candidates import Candidates


class LookupPlaces:
    """Follows every lookup source down the tree, as far as somebody asks.

    Args:
        lookups: the sources.
        session: whose context the tree grows behind.
        candidates: the nodes of the tree, which grows meanwhile.
    """

    def __init__(
        self, lookups: Sequence[LookupSource], session: Session, candidates: Candidates
    ) -> None:
        self._lookups, self._session, self._candidates = lookups, session, candidates
        self._places: dict[int, list[Any]] = {}
        self._hints: dict[int, tuple[LookupSource, Prediction] | None] = {}

    def at(self, node: int) -> Iterator[tuple[LookupSource, Any]]:
        """Each source, and where it is behind a candidate."""
        return zip(self._lookups, self._at(node), strict=True)

    def expected(self, node: int, lookup: LookupSource) -> Iterator[Prediction]:
        """What one of them expects behind a candidate, token after token."""
        return lookup.expected(self._at(node)[self._lookups.index(lookup)])

    def hint(self, node: int) -> tuple[LookupSource, Prediction] | None:
        """What is expected most firmly behind a candidate, and by whom."""
        if node in self._hints:
            return self._hints[node]
        best: tuple[LookupSource, Prediction] | None = None
        for lookup, place in self.at(node):
            prediction = next(lookup.expected(place), None)
            if prediction is not None and (best is None or prediction.weight > best[1].weight):
                best = lookup, prediction
        self._hints[node] = best
        return best

    def _at(self, node: int) -> list[Any]:
        found = self._places.get(node)
        if found is None:
            if node == ROOT:
                found = [lookup.place(self._session) for lookup in self._lookups]
            else:
                candidate = self._candidates.all[node]
                above = self.at(candidate.parent)
                found = [lookup.follow(place, candidate.token) for lookup, place in above]
            self._places[node] = found
        return found
