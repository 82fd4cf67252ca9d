"""The simulated p-values against scipy's."""

from collections import Counter

import pytest
from scipy import stats

from localspec import Drafting
from localspec.policy.profile import PairProfile
from localspec.verify.sampled import Pair, PairDistribution, WayResult, WaySample, _judge

EXPECTED = {(0, 1): 0.4, (0, 2): 0.2, (3, 1): 0.3, (3, 4): 0.1}


def judged(seen: Counter[Pair], place: PairDistribution) -> WayResult:
    way = WaySample(Drafting(), PairProfile())
    way.seen[()] = seen
    return _judge(way, {(): place})


def test_p_values() -> None:
    counts = [430, 190, 310, 70]
    seen = Counter(dict(zip(EXPECTED, counts, strict=True)))
    found = judged(seen, PairDistribution(EXPECTED, 1000, 50_000))
    for p, n, share in (
        (found.pairs, counts, [0.4, 0.2, 0.3, 0.1]),
        (found.firsts, [620, 380], [0.6, 0.4]),
    ):
        exact = stats.power_divergence(n, [1000 * x for x in share], lambda_="log-likelihood")
        assert p == pytest.approx(exact.pvalue, abs=0.01)
    assert found.impossible == 0
    unknown = Counter({(0, 1): 9, (7, 7): 2})
    assert judged(unknown, PairDistribution(EXPECTED, 11, 10)).impossible == 2
