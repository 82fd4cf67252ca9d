"""What is known of a pair on this machine; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from localspec.decoding.interfaces import AutoSource
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.costs import CostCurve, VerificationCosts

AGREES = "agrees"
"""Kind of estimator that every lookup source has: of a model source saying what it says."""
LOOKUP_KINDS = 4
"""Gains of asking a model source are learned apart by what the lookup sources offer: nothing, too
little to draft, a draft, a sure one."""


class SourceProfile:
    """What is known of one source.

    Attributes:
        costs: T(n) of its model; empty for a lookup source, and before it is calibrated.
        estimators: of acceptance, by kind of candidate.
        gains: by that, the tokens that asking it has gained per step, before the cost of its
            first pass; `asked` counts how often it was.
    """

    OPTIMISM = 0.2
    """Tokens gained that asking promises before it was tried; soon outweighed."""
    PATIENCE, GAIN_RATE = 4, 0.02
    """Times that OPTIMISM counts for, and the weight of one when there were many."""

    def __init__(self, priors: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self._priors = dict(priors or {})
        self.costs = CostCurve()
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self.estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
        self.gains = [self.OPTIMISM] * LOOKUP_KINDS
        self.asked = [0] * LOOKUP_KINDS

    def begin(self) -> None:
        """A new answer."""
        for estimator in self.estimators.values():
            estimator.begin()

    def gained(self, lookup_kind: int, tokens: float) -> None:
        """Learn what asking it was worth."""
        self.asked[lookup_kind] += 1
        rate = max(self.GAIN_RATE, 1.0 / (self.asked[lookup_kind] + self.PATIENCE))
        self.gains[lookup_kind] += rate * (tokens - self.gains[lookup_kind])

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "costs": self.costs.as_dict(),
            "estimators": {kind: e.as_dict() for kind, e in self.estimators.items()},
            "gains": self.gains,
            "asked": self.asked,
        }

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave; an estimator with other features than stored stays new.

        Raises:
            ValueError: not such a record.
        """
        try:
            costs = CostCurve.from_dict(stored["costs"])
            gains = [float(gain) for gain in stored["gains"]]
            asked = [int(count) for count in stored["asked"]]
            kinds = stored["estimators"]
            estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
            for kind, estimator in estimators.items():
                if kind in kinds and len(kinds[kind]["weights"]) == len(self._priors[kind]):
                    estimator.restore(kinds[kind])
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        if not all(map(math.isfinite, gains)) or min(asked, default=-1) < 0:
            raise ValueError("a number out of its range")
        if not len(gains) == len(asked) == LOOKUP_KINDS:
            raise ValueError("another number of offers")
        self.costs, self.estimators, self.gains, self.asked = costs, estimators, gains, asked


def check(stored: Any) -> None:
    """Return if this is what some `SourceProfile.as_dict` gave, whatever the source.

    Raises:
        ValueError: it is not.
    """
    try:
        kinds = {kind: tuple(e["weights"]) for kind, e in stored["estimators"].items()}
        SourceProfile(kinds).restore(stored)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no such record: {error}") from None


class PairProfile:
    """Cost curves, and what is known of each source that ever drafted for this target here.

    Attributes:
        target: T(n) of the target; empty before it is calibrated.
        doubts: how many times in a row the curves were measured on a busy machine.
        step_overhead, row_overhead: seconds of localspec's own work for a plain step, and for
            each drafted token on top.
    """

    OVERHEAD_RATE = 0.05

    def __init__(self) -> None:
        self._sources: dict[str, SourceProfile] = {}
        self._stored: dict[str, Any] = {}  # of sources that this session has not met
        self.forget()

    def forget(self) -> None:
        """Start anew, as on a machine that has never run this pair."""
        self.target = CostCurve()
        self.doubts = 0
        for source in self._sources.values():
            source.costs = CostCurve()
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self._stored.clear()
        for source in self._sources.values():
            source.forget_estimates()
        self.step_overhead = 40e-6
        self.row_overhead = 30e-6

    def source(self, source: AutoSource) -> SourceProfile:
        """The profile of a source: what an earlier session learned, else a new one."""
        found = self._sources.get(source.name)
        if found is None:
            # What it expects is at first as likely to be said by a model as by the target.
            priors = {AGREES: next(iter(source.priors.values())), **source.priors}
            found = self._sources[source.name] = SourceProfile(priors)
            if source.name in self._stored:
                found.restore(self._stored.pop(source.name))
        return found

    def begin(self) -> None:
        """A new answer."""
        for source in self._sources.values():
            source.begin()

    def spent(self, overhead: float, drafted: int) -> None:
        """Learn localspec's own seconds of one step."""
        if drafted:
            extra = min(1e-3, max(0.0, overhead - self.step_overhead) / drafted)
            self.row_overhead += self.OVERHEAD_RATE * (extra - self.row_overhead)
        else:
            overhead = min(1e-3, max(0.0, overhead))
            self.step_overhead += self.OVERHEAD_RATE * (overhead - self.step_overhead)

    def verification_costs(self, context: int, most: int) -> VerificationCosts:
        """Of drafts of up to `most` tokens behind so many cached ones."""
        return VerificationCosts(
            self.target,
            context,
            most,
            step_overhead=self.step_overhead,
            row_overhead=self.row_overhead,
        )

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "target": self.target.as_dict(),
            "doubts": self.doubts,
            "step_overhead": self.step_overhead,
            "row_overhead": self.row_overhead,
            "sources": self._stored | {name: s.as_dict() for name, s in self._sources.items()},
        }

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave; all of it or nothing. What it says of sources that are
        not registered any more is kept for when they are.

        Raises:
            ValueError: not such a record.
        """
        try:
            target = CostCurve.from_dict(stored["target"])
            doubts = int(stored["doubts"])
            step, row = float(stored["step_overhead"]), float(stored["row_overhead"])
            sources = dict(stored["sources"])
            for source in sources.values():
                check(source)
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        if not all(map(math.isfinite, (doubts, step, row))) or min(doubts, step, row) < 0:
            raise ValueError("a number out of its range")
        self.target, self.doubts, self._stored = target, doubts, sources
        self.step_overhead, self.row_overhead = step, row
        self._sources.clear()
