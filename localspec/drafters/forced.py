"""Drafts of text forced by a grammar or a schema: names of properties, constants."""

from collections.abc import Iterator, Sequence

from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction

_WEIGHTS = (3.5, -2.0)
"""Of a token; of the last one, which may be part of a longer token."""
_PRIORS = {"greedy": _WEIGHTS, "sampled": _WEIGHTS}


class ForcedSource(LookupSource):
    """Proposes the only text that a grammar allows (llguidance's fast-forward), as tokenized by the
    vocabulary; the target may choose other tokens. A position is the text that has to follow."""

    name = "grammar"
    priors = _PRIORS

    def position(self, session: Session) -> Sequence[int]:
        return () if session.constraint is None else session.constraint.forced()

    def advance(self, position: Sequence[int], token: int) -> Sequence[int]:
        return position[1:] if position and position[0] == token else ()

    def predict(self, position: Sequence[int]) -> Iterator[Prediction]:
        for left, token in zip(range(len(position) - 1, -1, -1), position, strict=True):
            yield Prediction(token, (1.0, float(left == 0)), weight=4.0)
