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
    target may spell it otherwise. A position is what has to follow there."""

    name = "grammar"
    priors = _PRIORS

    def position(self, session: Session) -> Sequence[int]:
        return () if session.constraint is None else session.constraint.forced()

    def advance(self, position: Sequence[int], token: int) -> Sequence[int]:
        return position[1:] if position and position[0] == token else ()

    def predict(self, position: Sequence[int]) -> Iterator[Prediction]:
        for left, token in zip(range(len(position) - 1, -1, -1), position, strict=True):
            yield Prediction(token, (1.0, float(left == 0)), weight=4.0)
