"""T(n) of one model by thread count."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from localspec.policy.cost_curve import CostCurve
from localspec.policy.records import CurveRecord

SCALING = 0.8  # twice the threads are guessed to make passes 2 to this power times faster


class ThreadCurves:
    """Cost curves by thread count; `now` is that of the present one, `threads`, 0 until `use`."""

    def __init__(self, threads: int = 0) -> None:
        self.threads, self.now = threads, CostCurve()
        self._others: dict[int, CostCurve] = {}

    def use(self, threads: int, faster: float = 1.0) -> None:
        """Go on with the curve of another count; a new one begins with the shape of this one's.
        `faster`: how many times as fast the pace that the curves are relative to becomes."""
        if threads == self.threads:
            if faster != 1.0:
                self.now.set_pace(self.now.pace * faster)
            return
        before, curve = self.now, self._others.pop(threads, None)
        if self.threads and before:
            self._others[self.threads] = before
            if curve is None:
                curve = deepcopy(before)
                curve.set_pace(before.pace * faster * (self.threads / threads) ** SCALING)
        self.threads, self.now = threads, curve or before

    def as_dict(self) -> dict[str, Any]:
        curves = self._others | {self.threads: self.now}
        return {str(n): curve.as_dict() for n, curve in sorted(curves.items()) if curve}

    def restore(self, stored: Mapping[int, CurveRecord]) -> None:
        """Take over what `as_dict` gave, and stay at the present count."""
        self._others = {n: CostCurve.from_record(curve) for n, curve in stored.items()}
        self.now = self._others.pop(self.threads, CostCurve())
