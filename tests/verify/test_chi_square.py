"""The statistics against scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from localspec.verify.chi_square import Bins, bins, noncentrality, pooled, tail


@pytest.mark.parametrize("freedom", [3, 10, 40, 200])
@pytest.mark.parametrize("reject", [1e-2, 1e-4])
def test_tail_and_power(freedom: int, reject: float) -> None:
    exact = stats.chi2.ppf(1 - reject, freedom)
    # Conservative: rejected statistics are rarer than stated.
    assert 0.99 < tail(exact, freedom) / reject < 1.4
    shift = noncentrality(freedom, reject)
    assert stats.ncx2.sf(exact, freedom, shift) == pytest.approx(0.9, abs=0.03)


def test_rare_outcomes_are_merged() -> None:
    found = bins([(60, 0.6), (30, 0.3), (6, 0.06), (3, 0.03), (1, 0.01)])
    assert found.counts == (60, 30, 10)  # 3 + 1 are expected less than 5 times, so 6 joins them
    assert found.expected == pytest.approx((60.0, 30.0, 10.0))
    assert found.statistic == pytest.approx(0.0)
    assert found.freedom == 2


def test_the_bias_that_is_seen_moves_the_statistic_to_where_it_says() -> None:
    samples, reject = 10_000, 1e-4
    right = Bins((5000, 3000, 2000), (5000.0, 3000.0, 2000.0))
    found = pooled([right, right], reject)
    assert found.bias is not None
    moved = found.bias * samples
    expected = 2 * moved * moved * (1 / 5000 + 1 / 3000)
    assert expected == pytest.approx(noncentrality(4, reject))


def test_without_a_choice_nothing_is_seen() -> None:
    found = pooled([bins([(50, 1.0)])], 1e-3)
    assert (found.freedom, found.chance, found.bias) == (0, 1.0, None)
