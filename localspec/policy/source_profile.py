"""What is known of one source; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.cost_curve import CostCurve
from localspec.policy.thread_curves import ThreadCurves

SITUATIONS = 3
"""Gains of a model source are learned apart where the lookup sources offer nothing that pays,
something that does, and something that is nearly sure."""


class Gain:
    """Tokens that something brings: a mean in which the latest count most, and how many
    observations it counts for."""

    LATEST, EARLIER = 12.0, 6.0
    """Observations that count, at most; and those of earlier answers."""
    BONUS = 0.15
    """Tokens, over the root of the count: optimism in the face of uncertainty (Lattimore &
    Szepesvári 2020, chapter 7)."""

    def __init__(self, mean: float = 0.75, count: float = 1.0) -> None:
        self.mean, self.count = float(mean), float(count)
        if not (math.isfinite(self.mean) and 0.0 < self.count < math.inf):
            raise ValueError("a number out of its range")

    @property
    def hoped(self) -> float:
        """Upper confidence bound."""
        return self.mean + self.BONUS / math.sqrt(self.count)

    def begin(self) -> None:
        """A new answer."""
        self.count = min(self.count, self.EARLIER)

    def learn(self, tokens: float) -> None:
        self.count = min(self.LATEST, self.count + 1.0)
        self.mean += (tokens - self.mean) / self.count


class SourceProfile:
    """What is known of one source.

    Attributes:
        curves: T(n) of its model; empty for a lookup source.
        estimators: of acceptance, by kind of candidate.
        gains: of asking it, by situation, in tokens beyond what was looked up, its first pass not
            taken off.
        saved: plain passes that it saved a token in the latest answers; None before the first.
    """

    SAVED_RATE, LEFT_OUT, FIRST = 1.0 / 256.0, 0.9, 0.5
    """Weight of a token in `saved`; what is left of a loss for each answer that it was left out
    of."""

    def __init__(self, priors: Mapping[str, tuple[float, ...]]) -> None:
        self._priors = dict(priors)
        self.curves = ThreadCurves()
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self.estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
        self.gains = [Gain() for _ in range(SITUATIONS)]
        self.saved: float | None = None

    @property
    def costs(self) -> CostCurve:
        return self.curves.now

    @costs.setter
    def costs(self, curve: CostCurve) -> None:
        self.curves.now = curve

    def begin(self) -> None:
        """A new answer."""
        for estimator in self.estimators.values():
            estimator.begin()
        for gain in self.gains:
            gain.begin()

    def earned(self, passes: float, tokens: int) -> None:
        """In a step of so many tokens it saved so many plain passes."""
        before = self.FIRST if self.saved is None else self.saved
        self.saved = before + min(1.0, tokens * self.SAVED_RATE) * (passes / tokens - before)

    def left_out(self, needed: float) -> None:
        """An answer is begun without it, in which it would have had to save so many."""
        if self.saved is not None:
            self.saved += (1.0 - self.LEFT_OUT) * (1.25 * needed - self.saved)

    def as_dict(self) -> dict[str, Any]:
        return {
            "costs": self.curves.as_dict(),
            "estimators": {kind: e.as_dict() for kind, e in self.estimators.items()},
            "gains": [[gain.mean, gain.count] for gain in self.gains],
            "saved": self.saved,
        }

    def restore(self, stored: Any, *, costs: bool = True) -> None:
        """Take over what `as_dict` gave, all of it or nothing. An estimator with other features
        stays new.

        Raises:
            ValueError: not such a record.
        """
        curves = ThreadCurves(self.curves.threads)
        estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
        try:
            if costs:
                curves.restore(stored["costs"])
            gains = [Gain(mean, count) for mean, count in stored["gains"]]
            saved = None if stored["saved"] is None else float(stored["saved"])
            for kind, kept in stored["estimators"].items():
                prior = self._priors.get(kind, ())
                if len(kept["weights"]) == len(prior):
                    estimators[kind].restore(kept)
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        if len(gains) != SITUATIONS or not math.isfinite(saved or 0.0):
            raise ValueError("another number of situations, or a number out of its range")
        self.estimators, self.gains, self.saved = estimators, gains, saved
        if costs:
            self.curves = curves

    @classmethod
    def check(cls, stored: Any) -> None:
        """Raise ValueError unless this is what some `as_dict` gave."""
        try:
            kinds = {kind: tuple(e["weights"]) for kind, e in stored["estimators"].items()}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no such record: {error}") from None
        cls(kinds).restore(stored)
