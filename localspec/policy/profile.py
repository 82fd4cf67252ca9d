"""The profile of a pair on this machine; kept across sessions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, TypeAdapter

from localspec.decoding.sources import Source
from localspec.policy.budget import Budget
from localspec.policy.cost_curve import CostCurve
from localspec.policy.source_profile import SourceProfile


@dataclass(eq=False)
class PairProfile:
    """Cost curves of a target, and the profiles of all sources that drafted for it.

    Attributes:
        target: T(n) of the target.
        doubts: number of consecutive calibrations on a busy machine.
        measured_at: `Budget.seconds` at the last measurement.
        step_overhead, row_overhead: localspec's own seconds for a plain step, and per drafted
            token.
        answers, said: answers begun, and their tokens; older ones count less.
        stock: seconds of a plain pass of stock llama.cpp ÷ those of one here; None if unmeasured.
    """

    OVERHEAD_RATE = 0.05
    REPEATED = 2  # calibrations after one on a busy machine
    KEPT = 0.9  # decay of an answer's weight, per later answer
    __pydantic_config__ = ConfigDict(allow_inf_nan=False)  # of all parts

    target: CostCurve = field(default_factory=CostCurve)
    budget: Budget = field(default_factory=Budget)
    sources: dict[str, SourceProfile] = field(default_factory=dict)
    doubts: NonNegativeInt = 0
    measured_at: NonNegativeFloat = 0.0
    answers: NonNegativeFloat = 0.0
    said: NonNegativeFloat = 0.0
    step_overhead: NonNegativeFloat = 40e-6
    row_overhead: NonNegativeFloat = 30e-6
    stock: PositiveFloat | None = None

    def forget(self) -> None:
        """Reset to the state of a pair that never ran here."""
        vars(self).update(vars(PairProfile()))

    def source(self, source: Source) -> SourceProfile:
        """The profile of a source, created if missing."""
        found = self.sources.get(source.name)
        if found is None:
            found = self.sources[source.name] = SourceProfile()
        found.add_priors(source.priors)
        return found

    def begin(self) -> None:
        self.answers, self.said = self.answers * self.KEPT + 1.0, self.said * self.KEPT
        for source in self.sources.values():
            source.begin()

    @property
    def uncertain(self) -> bool:
        """Whether the costs were measured on a busy machine, and will be again."""
        return 0 < self.doubts <= self.REPEATED

    @property
    def usual_length(self) -> float:
        """Mean tokens of an answer; infinite while unknown."""
        return self.said / self.answers if self.said else math.inf

    def record_overhead(self, overhead: float, drafted: int) -> None:
        """Learn localspec's own seconds of one step."""
        if drafted:
            extra = min(1e-3, max(0.0, overhead - self.step_overhead) / drafted)
            self.row_overhead += self.OVERHEAD_RATE * (extra - self.row_overhead)
        else:
            overhead = min(1e-3, max(0.0, overhead))
            self.step_overhead += self.OVERHEAD_RATE * (overhead - self.step_overhead)

    def verifying(self, context: int, most: int, target: CostCurve | None = None) -> list[float]:
        """Seconds of a verification step by number of tokens, up to most + 1, at the table's pace;
        [0] is unused."""
        target = target or self.target
        row = target.row(most + 1, context)
        # Gains are relative to plain decoding, whose time is best known from plain passes.
        row[1] = target.plain(context) / target.pace
        step, each = self.step_overhead / target.pace, self.row_overhead / target.pace
        return [0.0, *(seconds + step + n * each for n, seconds in enumerate(row[1:]))]

    def pass_seconds(self, source: SourceProfile, context: int) -> Callable[[int], float]:
        """Seconds of passes of a source's model by number of tokens, at the pace of the target's
        table."""
        costs, each = source.costs, self.row_overhead / self.target.pace
        return lambda n: costs.seconds(n, context) * costs.pace + each

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = _PROFILE.dump_python(self, mode="json")
        if self.budget.fund is not None:  # another session has no steps to be confirmed
            found["budget"]["fund"] += self.budget.credit
        return found

    def restore(self, stored: Any) -> None:
        """Load a record of `as_dict`. Raises ValueError, and changes nothing, if it is invalid."""
        found = _PROFILE.validate_python(stored)
        if stored.keys() != {one.name for one in fields(self)}:
            raise ValueError("a field is missing")
        vars(self).update(vars(found))


_PROFILE = TypeAdapter(PairProfile)
