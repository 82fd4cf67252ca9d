"""The candidate tokens of a draft, and the lookups that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from localspec.decoding.distribution import Distribution
from localspec.decoding.draft_sampler import DraftSampler
from localspec.decoding.sources import LookupSource, Prediction
from localspec.policy.acceptance_estimator import AcceptanceEstimator


class Lookup(NamedTuple):
    """A lookup source with its predictions for the tokens after the committed text."""

    source: LookupSource
    estimator: AcceptanceEstimator
    predictions: list[Prediction]


@dataclass(slots=True, eq=False)
class Candidate:
    """A token that could enter the tree. One without a parent stands for the committed text.

    Attributes:
        estimator, features: the source of its chance; None if nothing is learned from it.
        chance: accept probability, given that its parent is accepted and no earlier sibling is.
        reach: path probability.
        first: whether it is the first choice of the model source.
        remaining: probability that none of its children is accepted.
        sampler: for the tokens after it; None until needed.
        positions, hint: each lookup source's position after it, and their firmest prediction; None
            until needed.
    """

    token: int
    parent: Candidate | None
    source: str
    estimator: AcceptanceEstimator | None = None
    features: tuple[float, ...] = ()
    chance: float = 1.0
    reach: float = 1.0
    proposal: Distribution | None = None
    first: bool = False
    depth: int = 0
    remaining: float = 1.0
    sampler: DraftSampler | None = None
    positions: list[Any] | None = None
    hint: tuple[Lookup, Prediction] | None = None

    def path(self) -> list[int]:
        """Tokens after the committed text, up to and including its own."""
        tokens, node = [], self
        while node.parent is not None:
            tokens.append(node.token)
            node = node.parent
        tokens.reverse()
        return tokens
