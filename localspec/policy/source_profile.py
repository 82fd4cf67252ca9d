"""The profile of one source; kept across sessions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import PositiveFloat

from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.cost_curve import CostCurve


@dataclass(eq=False)
class Gain:
    """Running mean of gained tokens, and the effective number of observations."""

    LATEST, EARLIER = 12.0, 6.0  # maximum effective observations, in all and from earlier answers
    BONUS = 0.15  # tokens, over √count (Lattimore & Szepesvári 2020, chapter 7)

    mean: float = 0.75
    count: PositiveFloat = 1.0

    @property
    def upper_bound(self) -> float:
        return self.mean + self.BONUS / math.sqrt(self.count)

    def begin(self) -> None:
        self.count = min(self.count, self.EARLIER)

    def learn(self, tokens: float) -> None:
        self.count = min(self.LATEST, self.count + 1.0)
        self.mean += (tokens - self.mean) / self.count


@dataclass(eq=False)
class SourceProfile:
    """Costs, acceptance and gains of one source.

    Attributes:
        costs: T(n) of its model, relative to the pace of the target's, as a change of the machine
            affects both. Empty for a lookup source.
        estimators: of acceptance, by kind of candidate.
        gain: of drafting with it over lookups only, its first pass not deducted.
        saved: plain passes saved per token in recent answers; None before the first.
        left_out: whether the latest answer left it out for its cost, before it ever drafted.
    """

    SAVED_RATE, LEFT_OUT, FIRST = 1.0 / 256.0, 0.9, 0.5
    """Weight of a token in `saved`; factor on a loss for each answer without it; first value."""

    costs: CostCurve = field(default_factory=CostCurve)
    estimators: dict[str, AcceptanceEstimator] = field(default_factory=dict)
    gain: Gain = field(default_factory=Gain)
    saved: float | None = None

    def __post_init__(self) -> None:
        self._priors: Mapping[str, tuple[float, ...]] = {}
        self.left_out = False

    def add_priors(self, priors: Mapping[str, tuple[float, ...]]) -> None:
        """Add estimators for the source's priors, where missing or of another size."""
        if priors is self._priors:
            return
        self._priors = priors
        for kind, prior in priors.items():
            known = self.estimators.get(kind)
            if known is None or len(known.weights) != len(prior):
                self.estimators[kind] = AcceptanceEstimator([*prior])

    def begin(self) -> None:
        for estimator in self.estimators.values():
            estimator.begin()
        self.gain.begin()

    def record_savings(self, passes: float, tokens: int) -> None:
        """Record the plain passes saved in a step of `tokens` tokens."""
        before = self.FIRST if self.saved is None else self.saved
        self.saved = before + min(1.0, tokens * self.SAVED_RATE) * (passes / tokens - before)

    def record_omission(self, needed: float) -> None:
        """Record an answer without it; to pay, it had to save `needed` plain passes per token."""
        if self.saved is not None:
            self.saved += (1.0 - self.LEFT_OUT) * (1.25 * needed - self.saved)
