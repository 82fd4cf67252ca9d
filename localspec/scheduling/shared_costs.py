"""What passes cost one of several answers, as it foresees before all have drafted.

With k answers,

    cost of n rows = T(k) / k + min(T(others + n) - T(others + 1),
                                    (T(others + 1 + k (n - 1)) - T(others + 1)) / k):

its part of a pass without any draft, and what its further rows add, if nobody else drafts, or if
all draft as much. The others count with what they have asked for, or with one row each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from localspec.policy.cost_curve import CostCurve
from localspec.policy.target_costs import TargetCosts
from localspec.policy.worth import Bid
from localspec.scheduling.pass_costs import SharedCosts
from localspec.scheduling.shared_passes import SharedPasses
from localspec.scheduling.task import Task, Wait


class SharedTargetCosts(TargetCosts):
    """What passes of the target cost one of several answers."""

    def __init__(self, costs: SharedCosts, task: Task, passes: SharedPasses) -> None:
        super().__init__(costs.profile)
        self._curve = SharedCurve(costs, task, passes)
        self._task, self._passes = task, passes

    @property
    def curve(self) -> CostCurve:
        self._curve.look()
        return self._curve

    @property
    def setting(self) -> Hashable:
        return self.profile.threads, self._curve.answers

    def granted(self, context: int, bid: Callable[[], Bid]) -> tuple[int, float] | None:
        self._curve.look()
        if self._curve.answers == 1:
            return None
        return self._passes.bid(self._task, bid(), context)


class SharedCurve(CostCurve):
    """Seconds that n rows of one answer cost all of them; of an answer alone what they take."""

    def __init__(self, costs: SharedCosts, task: Task, passes: SharedPasses) -> None:
        super().__init__()
        self._costs, self._task, self._shared = costs, task, passes
        self._real = costs.profile.target
        self.answers, self._others = 1, 0

    def look(self) -> None:
        """See who else is there."""
        self._real = self._costs.profile.target
        others = [one for one in self._shared.others(self._task) if not one.reading]
        self.answers = 1 + len(others)
        self._others = sum(
            max(1, one.request.tokens)
            if one.request is not None and one.request.wait is Wait.TARGET
            else 1
            for one in others
        )
        self.pace = self._real.pace
        if self.answers == 1:
            self.baseline = self._real.baseline
        else:
            self.baseline = None
            if self._costs.confirmed:
                self.baseline = self._costs.baselines.get(self.answers)
        self.version = (self._real.version * 64 + self.answers) * 1024 + min(1023, self._others)

    def __bool__(self) -> bool:
        return bool(self._real)

    def doubtful(self, context: int) -> bool:
        if self.answers == 1:
            return self._real.doubtful(context)
        return self._costs.doubtful(self.answers)

    def plain(self, context: int) -> float:
        if self.answers == 1:
            return self._real.plain(context)
        told = self._costs.baselines.get(self.answers)
        pace = self._real.pace if told is None else told.now
        return self._real.seconds(self.answers, context) / self.answers * pace

    def seconds(self, n: int, context: int) -> float:
        if self.answers == 1:
            return self._real.seconds(n, context)
        real, answers, rows = self._real.seconds, self.answers, self._others + 1
        alone = real(rows + n - 1, context) - real(rows, context)
        together = real(rows + answers * (n - 1), context) - real(rows, context)
        return real(answers, context) / answers + min(alone, together / answers)

    def row(self, most: int, context: int) -> list[float]:
        if self.answers == 1:
            return self._real.row(most, context)
        return [0.0, *(self.seconds(n, context) for n in range(1, most + 1))]

    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        if self._task.alone:
            self._real.observe(n, context, seconds, alike=alike)
