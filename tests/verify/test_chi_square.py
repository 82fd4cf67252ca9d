"""The statistics against scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from localspec.verify.sampled import bins, pooled, tail


@pytest.mark.parametrize("freedom", [3, 10, 40, 200])
@pytest.mark.parametrize("reject", [1e-2, 1e-4])
def test_tail(freedom: int, reject: float) -> None:
    exact = stats.chi2.ppf(1 - reject, freedom)
    # Conservative: rejected statistics are rarer than stated.
    assert 0.99 < tail(exact, freedom) / reject < 1.4


def test_rare_outcomes_are_merged() -> None:
    found = bins([(60, 0.6), (30, 0.3), (6, 0.06), (3, 0.03), (1, 0.01)])
    # 3 + 1 are expected less than 5 times, so 6 joins them.
    assert [n for n, _ in found] == [60, 30, 10]
    assert [expected for _, expected in found] == pytest.approx([60.0, 30.0, 10.0])
    told = pooled([found])
    assert told.statistic == pytest.approx(0.0)
    assert told.freedom == 2


def test_without_a_choice_nothing_is_seen() -> None:
    found = pooled([bins([(50, 1.0)])])
    assert (found.freedom, found.chance) == (0, 1.0)
