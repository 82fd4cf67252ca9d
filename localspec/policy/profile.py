"""What is known of a pair on this machine; kept from session to session."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from localspec.decoding.sources import Source
from localspec.policy.budget import Budget
from localspec.policy.cost_curve import CostCurve
from localspec.policy.records import ProfileRecord, SourceRecord, sources_of
from localspec.policy.source_profile import SourceProfile
from localspec.policy.thread_curves import ThreadCurves


class PairProfile:
    """Cost curves, and what is known of each source that ever drafted for this target here.

    Attributes:
        doubts: how many times in a row the curves were measured on a busy machine.
        measured_at: `Budget.seconds` when a pass was measured last.
        step_overhead, row_overhead: localspec's own seconds for a plain step, and per drafted
            token.
        answers, said: answers begun, and tokens in them so far; older ones count less.
        stock: seconds of a plain pass of stock llama.cpp ÷ of one here; None where not measured.
    """

    OVERHEAD_RATE = 0.05
    KEPT = 0.9  # weight of an answer's length, for each one that was begun after it

    def __init__(self) -> None:
        self._sources: dict[str, SourceProfile] = {}
        self._stored: dict[str, Any] = {}  # of sources that this session has not met
        self.curves = ThreadCurves()
        self._draft_threads = 0
        self.forget()

    @property
    def target(self) -> CostCurve:
        return self.curves.now

    @property
    def threads(self) -> int:
        """On which the target's passes run; 0 until `use_threads` said so."""
        return self.curves.threads

    def use_threads(self, target: int, draft: int) -> None:
        """Passes run on other counts of threads from now on."""
        before = self.target.pace
        self.curves.use(target)
        self._draft_threads = draft
        for source in self._sources.values():
            source.curves.use(draft, before / self.target.pace)

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

    def source(self, source: Source) -> SourceProfile:
        """The profile of a source, of an earlier session where there is one."""
        found = self._sources.get(source.name)
        if found is None:
            found = self._sources[source.name] = SourceProfile(source.priors)
            found.curves.use(self._draft_threads)
            if source.name in self._stored:
                found.restore(SourceRecord.model_validate(self._stored.pop(source.name)))
        return found

    def begin(self) -> None:
        """A new answer."""
        self.answers, self.said = self.answers * self.KEPT + 1.0, self.said * self.KEPT
        for source in self._sources.values():
            source.begin()

    @property
    def usual_length(self) -> float:
        """Tokens of an answer; infinite while none is known."""
        return self.said / self.answers if self.said else math.inf

    def spent(self, overhead: float, drafted: int) -> None:
        """Learn localspec's own seconds of one step."""
        if drafted:
            extra = min(1e-3, max(0.0, overhead - self.step_overhead) / drafted)
            self.row_overhead += self.OVERHEAD_RATE * (extra - self.row_overhead)
        else:
            overhead = min(1e-3, max(0.0, overhead))
            self.step_overhead += self.OVERHEAD_RATE * (overhead - self.step_overhead)

    def verifying(self, context: int, most: int, target: CostCurve | None = None) -> list[float]:
        """Seconds of a verifying step by its tokens, up to most + 1, at the table's pace; [0] means
        nothing."""
        target = target or self.target
        row = target.row(most + 1, context)
        # Gains are measured by plain decoding, which plain passes know best.
        row[1] = target.plain(context) / target.pace
        step, each = self.step_overhead / target.pace, self.row_overhead / target.pace
        return [0.0, *(seconds + step + n * each for n, seconds in enumerate(row[1:]))]

    def pass_seconds(self, source: SourceProfile, context: int) -> Callable[[int], float]:
        """Seconds of passes of a source's model by their tokens, at the pace of the target's
        table."""
        costs, each = source.costs, self.row_overhead / self.target.pace
        return lambda n: costs.seconds(n, context) * costs.pace + each

    def as_dict(self) -> dict[str, Any]:
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
        """What answers have taught, by source, without what passes cost."""
        return {
            name: {k: v for k, v in source.as_dict().items() if k != "costs"}
            for name, source in self._sources.items()
        }

    def relearn(self, stored: Any) -> None:
        """Take over what `learned` gave, of the sources that there are. Raises ValueError
        otherwise."""
        found = sources_of(stored)
        for name in self._sources.keys() & found.keys():
            self._sources[name].restore(found[name], costs=False)

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave, also of unknown sources. Raises ValueError, and changes
        nothing, if it is no such record."""
        record = ProfileRecord.model_validate(stored)
        self.curves.restore(record.target)
        self.budget = Budget.from_record(record.budget)
        self.measured_at, self.doubts = record.measured_at, record.doubts
        self.step_overhead, self.row_overhead = record.step_overhead, record.row_overhead
        self.answers, self.said, self.stock = record.answers, record.said, record.stock
        self._stored = stored["sources"]
        self._sources.clear()
