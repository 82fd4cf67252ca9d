"""What passes of the target cost an answer."""

from __future__ import annotations

from collections.abc import Callable

from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid


class TargetCosts:
    """Of an answer that is generated alone: what the profile says."""

    def __init__(self, profile: PairProfile) -> None:
        self.profile = profile

    @property
    def answers(self) -> int:
        """How many share a pass."""
        return 1

    @property
    def curve(self) -> CostCurve:
        return self.profile.target

    def granted(self, context: int, bid: Callable[[], Bid]) -> tuple[int, float] | None:
        """How many candidates are verified, and seconds for each, if several answers decide
        together; None where this one decides."""
        return None
