"""A lookup source that expects what a test says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.interfaces import Plan
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.policy.acceptance_estimator import logit


def expects(token: int, chance: float) -> Prediction:
    """A prediction whose estimator begins with believing that chance."""
    return Prediction(token, (1.0, logit(chance)))


class ListedSource:
    """Expects the same tokens behind every text; implements `auto_sources.LookupSource`.

    Attributes:
        asked: how often it was asked for a place.
    """

    native_seconds = 0.0

    def __init__(self, predictions: Sequence[Prediction], name: str = "listed") -> None:
        self.name = name
        self.hidden: tuple[int, ...] = ()
        self.priors: Mapping[str, tuple[float, ...]] = {"any": (0.0, 1.0)}
        self.asked = 0
        self._predictions = predictions

    def begin(self, prompt: Sequence[int]) -> None:
        """Nothing to catch up with."""

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        node = tree.tip()
        for prediction in self._predictions[: plan.depth]:
            node = tree.add(prediction.token, node, self.name)

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """Nothing to keep."""

    def kind(self, session: Session) -> str:
        return "any"

    def place(self, session: Session) -> int:
        self.asked += 1
        return 0

    def follow(self, place: int, token: int) -> int:
        expected = self._predictions[place : place + 1]
        return place + 1 if expected and expected[0].token == token else len(self._predictions)

    def expected(self, place: int) -> Iterator[Prediction]:
        return iter(self._predictions[place:])

    def others(self, place: int, most: int) -> list[tuple[int, float]]:
        return []
