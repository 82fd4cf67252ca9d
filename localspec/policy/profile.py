"""What is known of a pair on this machine; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from localspec.decoding.auto_sources import AutoSource
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from localspec.policy.budget import Budget
from localspec.policy.cost_curve import CostCurve
from localspec.policy.worth import Bid

SITUATIONS = 3
"""What asking a model source gains is learned apart where the lookup sources offer nothing that
pays, something that does, and something that is nearly sure."""


class Gain:
    """Tokens that something brings, a mean in which the latest count most.

    Attributes:
        mean: tokens.
        count: observations that it counts for.
    """

    LATEST, EARLIER = 12.0, 6.0
    """Observations that count, at most; and those of earlier answers."""
    BONUS = 0.15
    """Tokens, over the root of the count: what is not well known is tried (optimism in the face of
    uncertainty; Lattimore & Szepesvári 2020, chapter 7)."""

    def __init__(self, mean: float = 0.75, count: float = 1.0) -> None:
        self.mean, self.count = float(mean), float(count)
        if not (math.isfinite(self.mean) and 0.0 < self.count < math.inf):
            raise ValueError("a number out of its range")

    @property
    def hoped(self) -> float:
        """Tokens, at best."""
        return self.mean + self.BONUS / math.sqrt(self.count)

    def begin(self) -> None:
        """A new answer."""
        self.count = min(self.count, self.EARLIER)

    def learn(self, tokens: float) -> None:
        """It brought so many."""
        self.count = min(self.LATEST, self.count + 1.0)
        self.mean += (tokens - self.mean) / self.count


class SourceProfile:
    """What is known of one source.

    Attributes:
        curves: T(n) of its model, by thread count; empty for a lookup source.
        estimators: of acceptance, by kind of candidate.
        gains: of asking it, by situation, in tokens beyond what was looked up, its first pass not
            taken off.
        saved: plain passes that it saved, a token of the latest answers that it took part in; None
            before the first.
    """

    SAVED_RATE, LEFT_OUT, FIRST = 1.0 / 256.0, 0.9, 0.5
    """Weight of a token in `saved`; what is left of a loss for each answer that it was left out of,
    so that it is tried again in the end."""

    def __init__(self, priors: Mapping[str, tuple[float, ...]] | None = None) -> None:
        self._priors = dict(priors or {})
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
        """For the store."""
        return {
            "costs": self.curves.as_dict(),
            "estimators": {kind: e.as_dict() for kind, e in self.estimators.items()},
            "gains": [[gain.mean, gain.count] for gain in self.gains],
            "saved": self.saved,
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
            gains = [Gain(mean, count) for mean, count in stored["gains"]]
            saved = None if stored["saved"] is None else float(stored["saved"])
            kinds = stored["estimators"]
            estimators = {k: AcceptanceEstimator(prior) for k, prior in self._priors.items()}
            for kind, estimator in estimators.items():
                if kind in kinds and len(kinds[kind]["weights"]) == len(self._priors[kind]):
                    estimator.restore(kinds[kind])
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        if len(gains) != SITUATIONS or not math.isfinite(saved or 0.0):
            raise ValueError("another number of situations, or a number out of its range")
        self.estimators, self.gains, self.saved = estimators, gains, saved


class ThreadCurves:
    """T(n) of one model by thread count. What was never measured on a count begins as the curve of
    the nearest one: its shape, at a pace that live passes find.

    Attributes:
        threads: the present count; `now` is its curve. 0 until somebody says one.
        borrowed: whether that curve was never measured on this count.
    """

    SCALING = 0.8
    """Twice the threads are guessed to make passes 2 to this power times faster."""

    def __init__(self, threads: int = 0) -> None:
        self._curves: dict[int, CostCurve] = {}
        self._lent: dict[int, CostCurve] = {}  # what live passes made of borrowed ones
        self.threads, self.now, self.borrowed = threads, CostCurve(), False

    def __bool__(self) -> bool:
        return any(self._curves.values()) or bool(self.now)

    def measured(self) -> None:
        """The present curve was calibrated."""
        self.borrowed = False

    def use(self, threads: int, price: float | None = None) -> None:
        """Go on with the curve of another count.

        Args:
            price: what passes cost there, in those at the present count, where that is known.
        """
        before = self.threads
        if threads == before:
            return
        # A curve from before anybody spoke of threads is as good as one of this count.
        if self.borrowed:
            self._lent[before] = self.now
        elif self.now:
            self._curves[before or threads] = self.now
        self.threads, self.borrowed = threads, False
        known = self._curves.get(threads) or self._lent.get(threads)
        if known is not None:
            self.now, self.borrowed = known, threads not in self._curves
            return
        self.now = CostCurve()
        if self._curves:
            nearest = min(self._curves, key=lambda n: abs(n - threads))
            self.now = CostCurve.from_dict(self._curves[nearest].as_dict())
            if price is None or nearest != before:
                price = (nearest / threads) ** self.SCALING
            self.now.set_pace(self._curves[nearest].pace * price)
            self.borrowed = True

    def as_dict(self) -> dict[str, Any]:
        """For the store: the measured ones by thread count."""
        now = {} if self.borrowed else {self.threads: self.now}
        curves = self._curves | now
        return {str(n): curve.as_dict() for n, curve in sorted(curves.items()) if curve}

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave, and stay at the present count.

        Raises:
            ValueError: not such a record.
        """
        try:
            curves = {int(threads): CostCurve.from_dict(c) for threads, c in stored.items()}
        except (AttributeError, TypeError) as error:
            raise ValueError(f"no such record: {error}") from None
        if any(threads < 0 for threads in curves):
            raise ValueError("no such number of threads")
        threads, self.threads, self.now = self.threads, 0, curves.pop(0, CostCurve())
        self._curves, self.borrowed = curves, False
        self.use(threads)


class PairProfile:
    """Cost curves, and what is known of each source that ever drafted for this target here.

    Attributes:
        curves: of the target; `target` is the one of the present thread count.
        budget: of what drafting saved and may risk.
        doubts: how many times in a row the curves were measured on a busy machine.
        measured_at: seconds that decoding had taken (`Budget.seconds`) when a pass was measured
            last.
        step_overhead, row_overhead: seconds of localspec's own work for a plain step, and for each
            drafted token on top.
        answers, said: answers that were begun, and tokens that they have so far; older ones count
            less.
        stock: seconds of a plain pass of stock llama.cpp ÷ of one here; None where not measured.
    """

    OVERHEAD_RATE = 0.05
    KEPT = 0.9
    """Weight of an answer's length, for each one that was begun after it."""

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
        """On which the target's passes run; 0 until `use_threads` said so."""
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
        self.curves = ThreadCurves(self.threads)
        self.budget = Budget()
        self.doubts, self.measured_at = 0, 0.0
        self.stock: float | None = None
        for source in self._sources.values():
            source.curves = ThreadCurves(source.curves.threads)
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Forget what was learned from answers, keep what passes cost."""
        self._stored.clear()
        for source in self._sources.values():
            source.forget_estimates()
        self.answers = self.said = 0.0
        self.step_overhead, self.row_overhead = 40e-6, 30e-6

    def source(self, source: AutoSource) -> SourceProfile:
        """The profile of a source: what an earlier session learned, else a new one."""
        found = self._sources.get(source.name)
        if found is None:
            found = self._sources[source.name] = SourceProfile(source.priors)
            found.curves.use(self._draft_threads)
            if source.name in self._stored:
                found.restore(self._stored.pop(source.name))
        return found

    def begin(self) -> None:
        """A new answer."""
        self.answers, self.said = self.answers * self.KEPT + 1.0, self.said * self.KEPT
        for source in self._sources.values():
            source.begin()

    @property
    def usual_length(self) -> float:
        """Tokens of an answer; without end while none is known."""
        return self.said / self.answers if self.said else math.inf

    def spent(self, overhead: float, drafted: int) -> None:
        """Learn localspec's own seconds of one step."""
        if drafted:
            extra = min(1e-3, max(0.0, overhead - self.step_overhead) / drafted)
            self.row_overhead += self.OVERHEAD_RATE * (extra - self.row_overhead)
        else:
            overhead = min(1e-3, max(0.0, overhead))
            self.step_overhead += self.OVERHEAD_RATE * (overhead - self.step_overhead)

    def verifying(self, context: int, most: int) -> list[float]:
        """Seconds of a verifying pass by its tokens, up to most + 1, at the pace of the table and
        with localspec's own work; [0] means nothing."""
        target = self.target
        row = target.row(most + 1, context)
        # Gains are measured by plain decoding, which plain passes know best.
        row[1] = target.plain(context) / target.pace
        step, each = self.step_overhead / target.pace, self.row_overhead / target.pace
        return [0.0, *(seconds + step + n * each for n, seconds in enumerate(row[1:]))]

    def pass_seconds(self, source: SourceProfile, context: int) -> Callable[[int], float]:
        """Of passes of a source's model by their tokens, at the pace of the *target's* table, in
        which everything is reckoned: the two may have been measured at different moments."""
        costs, pace = source.costs, self.target.pace
        relative, each = costs.pace / pace, self.row_overhead / pace
        return lambda n: costs.seconds(n, context) * relative + each

    def granted(self, context: int, bid: Callable[[], Bid]) -> tuple[int, float] | None:
        """How many candidates are verified, and seconds for each, where that is decided for several
        answers together; None where the answer decides. `bid` makes its own."""
        return None

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {
            "target": self.curves.as_dict(),
            "budget": self.budget.as_dict(),
            "doubts": self.doubts,
            "measured_at": self.measured_at,
            "answers": self.answers,
            "said": self.said,
            "step_overhead": self.step_overhead,
            "row_overhead": self.row_overhead,
            "stock": self.stock,
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
            budget = Budget.from_dict(stored["budget"])
            measured_at = float(stored["measured_at"])
            step, row = float(stored["step_overhead"]), float(stored["row_overhead"])
            doubts = int(stored["doubts"])
            answers, said = float(stored["answers"]), float(stored["said"])
            stock = float(stored.get("stock") or 0.0)
            sources = dict(stored["sources"])
            for source in sources.values():
                _check(source)
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        checked = measured_at, step, row, doubts, answers, said, stock
        if not all(map(math.isfinite, checked)) or min(checked) < 0:
            raise ValueError("a number out of its range")
        self.curves.restore(stored["target"])
        self.measured_at, self.step_overhead, self.row_overhead = measured_at, step, row
        self.answers, self.said = answers, said
        self.doubts, self.budget, self._stored = doubts, budget, sources
        self.stock = stock or None
        self._sources.clear()


def _check(stored: Any) -> None:
    """Return if this is what some `SourceProfile.as_dict` gave, whatever the source.

    Raises:
        ValueError: it is not.
    """
    try:
        kinds = {kind: tuple(e["weights"]) for kind, e in stored["estimators"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no such record: {error}") from None
    SourceProfile(kinds).restore(stored)
