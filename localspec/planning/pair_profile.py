"""What the measured planner knows of a pair on this machine; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.planning.acceptance_estimator import Chance
from localspec.planning.costs import CostCurve

# Fitted to 8,374 positions of the embedded pair's answers, greedy and at T = 0.8; where a pair
# begins, not where it stays. Features as `localspec.planning.draft_tree` gives them.
PRIORS: Mapping[str, tuple[float, ...]] = {
    "model": (0.3, 1.6, 0.5, 0.6),
    "model, sampled": (1.1, 0.6, 0.0, 0.1),
    "model, chosen": (0.1, 0.8, 0.0, 0.2),
    "second": (1.1, 1.0, 2.4),
    "agrees": (-0.8, 0.4, 1.0, 0.6),
    "ngram": (-0.8, 0.4, 1.0, 0.6),
    "ngram, sampled": (-1.0, 0.35, 1.2, 0.45),
}


class Knowledge:
    """Cost curves, chances of acceptance, and what looking at the draft model has brought.

    Attributes:
        target, draft: T(n) of the two models; empty before they are calibrated.
        doubts: how many times in a row the curves were measured on a busy machine.
        chances: by kind, see PRIORS.
        looks: by what the n-gram offers (nothing, too little to draft, a draft, a sure one), the
            tokens that asking the draft model has gained per step, before the cost of its first
            pass; `looked_at` counts how often it was asked.
        step_overhead, row_overhead: seconds of localspec's own work for a plain step, and for
            each drafted token on top.
    """

    OPTIMISM = 0.2
    """Tokens gained that a look promises before any was taken; soon outweighed."""
    PATIENCE, LOOK_RATE = 4, 0.02
    """Looks that OPTIMISM counts for, and the weight of one when many were taken."""
    OVERHEAD_RATE = 0.05

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew, as on a machine that has never run this pair."""
        self.target = CostCurve()
        self.draft = CostCurve()
        self.doubts = 0
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self.chances = {kind: Chance(prior) for kind, prior in PRIORS.items()}
        self.looks = [self.OPTIMISM] * 4
        self.looked_at = [0] * 4
        self.step_overhead = 40e-6
        self.row_overhead = 30e-6

    def begin(self) -> None:
        """A new answer."""
        for chance in self.chances.values():
            chance.begin()

    def looked(self, offer: int, gain: float) -> None:
        """Learn what a look at the draft model was worth, in tokens."""
        self.looked_at[offer] += 1
        rate = max(self.LOOK_RATE, 1.0 / (self.looked_at[offer] + self.PATIENCE))
        self.looks[offer] += rate * (gain - self.looks[offer])

    def spent(self, overhead: float, drafted: int) -> None:
        """Learn localspec's own seconds of one step."""
        if drafted:
            extra = min(1e-3, max(0.0, overhead - self.step_overhead) / drafted)
            self.row_overhead += self.OVERHEAD_RATE * (extra - self.row_overhead)
        else:
            overhead = min(1e-3, max(0.0, overhead))
            self.step_overhead += self.OVERHEAD_RATE * (overhead - self.step_overhead)

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "target": self.target.as_dict(),
            "draft": self.draft.as_dict(),
            "doubts": self.doubts,
            "chances": {kind: chance.as_dict() for kind, chance in self.chances.items()},
            "looks": self.looks,
            "looked_at": self.looked_at,
            "step_overhead": self.step_overhead,
            "row_overhead": self.row_overhead,
        }

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave; all of it or nothing.

        Raises:
            ValueError: not such a record.
        """
        try:
            target = CostCurve.from_dict(stored["target"])
            draft = CostCurve.from_dict(stored["draft"])
            doubts = int(stored["doubts"])
            chances = {kind: Chance(prior) for kind, prior in PRIORS.items()}
            for kind, chance in chances.items():
                chance.restore(stored["chances"][kind])
            looks = [float(gain) for gain in stored["looks"]]
            looked_at = [int(count) for count in stored["looked_at"]]
            step, row = float(stored["step_overhead"]), float(stored["row_overhead"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        numbers = [*looks, *looked_at, doubts, step, row]
        if not all(map(math.isfinite, numbers)) or min(*looked_at, doubts, step, row) < 0:
            raise ValueError("a number out of its range")
        if not len(looks) == len(looked_at) == len(self.looks):
            raise ValueError("another number of offers")
        self.target, self.draft, self.chances, self.looks = target, draft, chances, looks
        self.looked_at, self.doubts = looked_at, doubts
        self.step_overhead, self.row_overhead = step, row
