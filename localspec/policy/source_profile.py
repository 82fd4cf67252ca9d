"""What is known of one source; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.cost_curve import CostCurve
from localspec.policy.records import SITUATIONS, SourceRecord
from localspec.policy.thread_curves import ThreadCurves


class Gain:
    """Tokens that something brings: a mean of the latest, and how many observations it counts
    for."""

    LATEST, EARLIER = 12.0, 6.0  # observations that count, at most; and those of earlier answers
    BONUS = 0.15  # tokens, over the root of the count (Lattimore & Szepesvári 2020, chapter 7)

    def __init__(self, mean: float = 0.75, count: float = 1.0) -> None:
        self.mean, self.count = mean, count

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
        curves: T(n) of its model, relative to the pace of the target's: a machine that changes
            changes both. Empty for a lookup source.
        estimators: of acceptance, by kind of candidate.
        gains: of asking it beyond what was looked up, by situation, its first pass not taken off.
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

    def restore(self, stored: SourceRecord, *, costs: bool = True) -> None:
        """Take over what `as_dict` gave; what passes cost only if `costs`."""
        if costs:
            self.curves.restore(stored.costs)
        self.forget_estimates()
        self.gains = [Gain(mean, count) for mean, count in stored.gains]
        self.saved = stored.saved
        for kind in self.estimators.keys() & stored.estimators.keys():
            self.estimators[kind].restore(stored.estimators[kind])
