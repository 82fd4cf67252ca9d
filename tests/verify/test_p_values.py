"""The simulated p-values against scipy's."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from localspec import Drafting
from localspec.policy.profile import PairProfile
from localspec.verify.sampled import Pair, PairDistribution, WayResult, WaySample, _judge

EXPECTED = {(0, 1): 0.4, (0, 2): 0.2, (3, 1): 0.3, (3, 4): 0.1}


def judged(seen: Counter[Pair], draws: int, texts: int = 1) -> WayResult:
    """The result if the same pairs were seen after each of some texts."""
    way, random = WaySample(Drafting(), PairProfile()), np.random.default_rng(1)
    way.seen.update({(text,): seen for text in range(texts)})
    total = seen.total()
    return _judge(way, {t: PairDistribution(EXPECTED, total, draws, random) for t in way.seen})


@pytest.mark.parametrize("texts", [1, 2])
def test_p_values(texts: int) -> None:
    counts = [425, 202, 286, 87]
    found = judged(Counter(dict(zip(EXPECTED, counts, strict=True))), 50_000, texts)
    for p, n, share in (
        (found.pairs, counts, [0.4, 0.2, 0.3, 0.1]),
        (found.firsts, [627, 373], [0.6, 0.4]),
    ):
        expected = [1000 * x for x in share]
        single = stats.power_divergence(n, expected, lambda_="log-likelihood").statistic
        exact = stats.chi2.sf(texts * single, texts * (len(n) - 1))
        assert p == pytest.approx(exact, abs=0.01)
    assert found.impossible == 0
    assert judged(Counter({(0, 1): 9, (7, 7): 2}), 10).impossible == 2
