"""The cost curve of a target that drafts are tried on."""

from __future__ import annotations

from localspec.decoding.caches import Cache
from localspec.pairing.forecast import DEEPEST
from localspec.policy.calibration import calibrate
from localspec.policy.cost_curve import CostCurve


def measured_curve(passes: Cache, seconds: float) -> tuple[float, ...]:
    """T(n) ÷ T(1), n = 1 … DEEPEST + 1, in about `seconds`; raises as `Context.extend`. The cache,
    with room for 16 tokens or more, is left empty."""
    costs = CostCurve()
    calibrate(passes, costs, seconds)
    plain = costs.seconds(1, 0)
    return tuple(costs.seconds(n, 0) / plain for n in range(1, DEEPEST + 2))
