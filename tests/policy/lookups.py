"""A lookup source that expects what a test says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from localspec.decoding.session import Session
from localspec.decoding.sources import LookupSource, Prediction
from localspec.policy.acceptance_estimator import logit


def expects(token: int, chance: float) -> Prediction:
    """A prediction whose estimator begins with believing that chance."""
    return Prediction(token, (1.0, logit(chance)))


class ListedSource(LookupSource):
    """Expects the same tokens behind every text.

    Attributes:
        predictions: may be changed.
        asked: how often it was asked for a place.
    """

    priors: Mapping[str, tuple[float, ...]] = {"any": (0.0, 1.0)}

    def __init__(self, predictions: Sequence[Prediction], name: str = "listed") -> None:
        self.name = name
        self.asked = 0
        self.predictions = predictions

    def place(self, session: Session) -> int:
        self.asked += 1
        return 0

    def follow(self, place: int, token: int) -> int:
        expected = self.predictions[place : place + 1]
        return place + 1 if expected and expected[0].token == token else len(self.predictions)

    def expected(self, place: int) -> Iterator[Prediction]:
        return iter(self.predictions[place:])
