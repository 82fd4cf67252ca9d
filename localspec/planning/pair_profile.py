"""What is known of a pair on this machine; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from localspec.decoding.auto_sources import AutoSource, ModelSource
from localspec.planning.acceptance_estimator import AcceptanceEstimator
from localspec.planning.account import Account
from localspec.planning.asking import BEFORE, prior
from localspec.planning.costs import CostCurve, VerificationCosts
from localspec.planning.draft_value import Bid
from localspec.planning.earnings import AnswerLengths, Earnings
from localspec.planning.state_reading import StateReading
from localspec.planning.thread_curves import ThreadCurves

AGREES = "agrees"
"""Kind of estimator that every lookup source has: of a model source saying what it says."""
LOOKUP_KINDS = 4
"""How much of the prospects of asking a model source comes true is learned apart by what the lookup
sources offer: nothing, too little to draft, a draft, a sure one."""


class SourceProfile:
    """What is known of one source.

    Attributes:
        costs: T(n) of its model on the present count of threads; empty for a lookup source, and
            before it is calibrated. `curves` has those on other counts.
        estimators: of acceptance, by kind of candidate.
        came_true: by that, the share of the tokens foreseen that asking it gained; `asked` counts
            how often it was.
        earnings: what it saved, a token of answers that it took part in.
        states: whether it is told the target's hidden states, if it drafts from them; not kept.
    """

    PATIENCE, RATE = 5, 0.02
    """Times of asking for which the prospects are believed as they are, and the weight of one when
    there were many."""
    USUAL = 0.5
    """Tokens that asking usually gains."""

    def __init__(self, priors: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self._priors = dict(priors or {})
        self.curves = ThreadCurves()
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self.estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
        self.came_true = [1.0] * LOOKUP_KINDS
        self.asked = [0] * LOOKUP_KINDS
        self.earnings = Earnings()
        self.states = StateReading()

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

    def learn_prospect(self, lookup_kind: int, foreseen: float, came: float) -> None:
        """Learn what asking it was worth, in tokens."""
        self.asked[lookup_kind] += 1
        rate = max(self.RATE, 1.0 / (self.asked[lookup_kind] + self.PATIENCE))
        share = self.came_true[lookup_kind]
        # The error in tokens, as a share of what is usual: prospects near 0 say nothing.
        self.came_true[lookup_kind] = max(
            0.0, share + rate * (came - share * foreseen) / max(foreseen, self.USUAL)
        )

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "costs": self.curves.as_dict(),
            "estimators": {kind: e.as_dict() for kind, e in self.estimators.items()},
            "came_true": self.came_true,
            "asked": self.asked,
            "earnings": [self.earnings.tokens, self.earnings.passes],
        }

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave; an estimator with other features than stored stays new.

        Raises:
            ValueError: not such a record.
        """
        try:
            ThreadCurves().restore(stored["costs"])
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        self.restore_estimates(stored)
        self.curves.restore(stored["costs"])

    def restore_estimates(self, stored: Any) -> None:
        """The same of what was learned from answers alone.

        Raises:
            ValueError: not such a record.
        """
        try:
            came_true = [float(share) for share in stored["came_true"]]
            asked = [int(count) for count in stored["asked"]]
            earnings = Earnings(*stored.get("earnings", ()))  # profiles once had none
            kinds = stored["estimators"]
            estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
            for kind, estimator in estimators.items():
                if kind in kinds and len(kinds[kind]["weights"]) == len(self._priors[kind]):
                    estimator.restore(kinds[kind])
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        if not all(map(math.isfinite, came_true)) or min(asked, default=-1) < 0:
            raise ValueError("a number out of its range")
        if not len(came_true) == len(asked) == LOOKUP_KINDS:
            raise ValueError("another number of offers")
        self.estimators, self.came_true, self.asked = estimators, came_true, asked
        self.earnings = earnings


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
        target: T(n) of the target on the present count of threads (`threads`, 0 until
            `use_threads` said one); empty before it is calibrated.
        account: of what drafting saved and may risk; see `localspec.planning.account`.
        lengths: of answers.
        doubts: how many times in a row the curves were measured on a busy machine.
        measured_at: seconds that decoding had taken (`Account.seconds`) when a pass was measured
            last.
        step_overhead, row_overhead: seconds of localspec's own work for a plain step, and for
            each drafted token on top; plain_overhead those for a step that nothing was planned for.
    """

    OVERHEAD_RATE = 0.05

    def __init__(self) -> None:
        self._sources: dict[str, SourceProfile] = {}
        self._stored: dict[str, Any] = {}  # of sources that this session has not met
        self.curves = ThreadCurves()
        self._draft_threads = 0
        self.forget()

    @property
    def target(self) -> CostCurve:
        return self.curves.now

    @target.setter
    def target(self, curve: CostCurve) -> None:
        self.curves.now = curve

    @property
    def threads(self) -> int:
        return self.curves.threads

    def use_threads(
        self, target: int, draft: int, price: Callable[[int, int], float | None] = lambda a, b: None
    ) -> None:
        """Passes run on other counts of threads from now on: their curves take the places.

        Args:
            price: what passes on one count cost in those on another, None where unknown.
        """
        self.curves.use(target, price(target, self.threads))
        self._draft_threads = draft
        for source in self._sources.values():
            source.curves.use(draft, price(draft, source.curves.threads))

    def forget(self) -> None:
        """Start anew, as on a machine that has never run this pair."""
        self.curves = _empty(self.threads)
        self.account = Account()
        self.doubts, self.measured_at = 0, 0.0
        for source in self._sources.values():
            source.curves = _empty(source.curves.threads)
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self._stored.clear()
        for source in self._sources.values():
            source.forget_estimates()
        self.lengths = AnswerLengths()
        self.step_overhead = self.plain_overhead = 40e-6
        self.row_overhead = 30e-6

    def source(self, source: AutoSource) -> SourceProfile:
        """The profile of a source: what an earlier session learned, else a new one."""
        found = self._sources.get(source.name)
        if found is None:
            # What it expects is at first as likely to be said by a model as by the target.
            priors = {AGREES: next(iter(source.priors.values())), **source.priors}
            if isinstance(source, ModelSource):
                priors |= {BEFORE + kind: prior(kind) for kind in source.priors}
            found = self._sources[source.name] = SourceProfile(priors)
            found.curves.use(self._draft_threads)
            if source.name in self._stored:
                found.restore(self._stored.pop(source.name))
        return found

    def begin(self) -> None:
        """A new answer."""
        self.lengths.begin()
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

    def slept(self, overhead: float) -> None:
        """Learn localspec's own seconds of a step that nothing was planned for."""
        overhead = min(1e-3, max(0.0, overhead))
        self.plain_overhead += self.OVERHEAD_RATE * (overhead - self.plain_overhead)

    def verification_costs(self, context: int, most: int) -> VerificationCosts:
        """Of drafts of up to `most` tokens behind so many cached ones."""
        return VerificationCosts(
            self.target,
            context,
            most,
            step_overhead=self.step_overhead / self.target.pace,
            row_overhead=self.row_overhead / self.target.pace,
        )

    def pass_seconds(
        self, source: SourceProfile, context: int, own: float | None = None
    ) -> Callable[[int], float]:
        """Of passes of a source's model by their tokens, localspec's own work included (`own`, or
        as of now), at the pace of the target's table, in which everything is reckoned: the two may
        have been measured at moments when the machine was not equally fast."""
        costs, pace = source.costs, self.target.pace
        seconds, relative = costs.seconds, costs.pace / pace
        each = (self.row_overhead if own is None else own) / pace
        return lambda n: seconds(n, context) * relative + each

    def present_costs(
        self, costs: VerificationCosts, context: int, bid: Callable[[], Bid]
    ) -> tuple[VerificationCosts, int | None]:
        """What verifying costs by now, and how many candidates are verified, None if the answer
        decides that; `costs` are those with which the step was planned, `bid` makes its own."""
        return costs, None

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "target": self.curves.as_dict(),
            "account": self.account.as_dict(),
            "doubts": self.doubts,
            "measured_at": self.measured_at,
            "lengths": [self.lengths.answers, self.lengths.tokens],
            "step_overhead": self.step_overhead,
            "row_overhead": self.row_overhead,
            "sources": self._stored | {name: s.as_dict() for name, s in self._sources.items()},
        }

    def learned(self) -> dict[str, Any]:
        """What answers have taught, by source: how often drafts are right, and what they bring. Not
        what passes cost, which another session may know better."""
        return {
            name: {k: v for k, v in source.as_dict().items() if k != "costs"}
            for name, source in self._sources.items()
        }

    def relearn(self, stored: Any) -> None:
        """Take over what `learned` gave, of the sources that there are.

        Raises:
            ValueError: not such a record; the sources before that one are changed.
        """
        if not isinstance(stored, dict):
            raise ValueError("no such record")
        for name, source in self._sources.items():
            if name in stored:
                source.restore_estimates(stored[name])

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave; all of it or nothing. What it says of sources that are
        not registered any more is kept for when they are.

        Raises:
            ValueError: not such a record.
        """
        try:
            ThreadCurves().restore(stored["target"])
            account = Account.from_dict(stored["account"])
            doubts = int(stored["doubts"])
            # Profiles once had neither.
            lengths = AnswerLengths(*stored.get("lengths", ()))
            measured_at = float(stored.get("measured_at", 0.0))
            step, row = float(stored["step_overhead"]), float(stored["row_overhead"])
            sources = dict(stored["sources"])
            for source in sources.values():
                check(source)
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        numbers = doubts, measured_at, step, row
        if not all(map(math.isfinite, numbers)) or min(numbers) < 0:
            raise ValueError("a number out of its range")
        self.curves.restore(stored["target"])
        self.doubts, self.measured_at, self._stored = doubts, measured_at, sources
        self.account, self.lengths = account, lengths
        self.step_overhead, self.row_overhead = step, row
        self._sources.clear()


def _empty(threads: int) -> ThreadCurves:
    curves = ThreadCurves()
    curves.use(threads)
    return curves
