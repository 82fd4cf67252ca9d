"""Drafts what a grammar or a schema leaves no choice about: names of properties, constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction

_WEIGHTS = (3.5, -2.0)
"""Of a token, and of the last one, which what follows may be spelled with."""
_PRIORS = {"greedy": _WEIGHTS, "sampled": _WEIGHTS}


class ForcedSource(LookupSource):
    """The only text that may come (llguidance's fast-forward), in the vocabulary's spelling; the
    target may spell it otherwise. A place is what has to follow there."""

    name = "grammar"
    priors = _PRIORS

    def place(self, session: Session) -> Sequence[int]:
        return () if session.constraint is None else session.constraint.forced()

    def follow(self, place: Sequence[int], token: int) -> Sequence[int]:
        return place[1:] if place and place[0] == token else ()

    def expected(self, place: Sequence[int]) -> Iterator[Prediction]:
        for left, token in zip(range(len(place) - 1, -1, -1), place, strict=True):
            yield Prediction(token, (1.0, float(left == 0)), weight=4.0)
