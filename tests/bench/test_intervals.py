"""Intervals from few prompts: by hand, and by how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from localspec.bench.speed_ups import mean_interval


def test_six_prompts_by_hand() -> None:
    logs = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3])
    found = mean_interval([logs])
    assert found is not None
    half = 2.5706 * math.sqrt(0.008) / math.sqrt(6)
    assert found == pytest.approx((math.exp(0.2 - half), math.exp(0.2 + half)), rel=1e-3)
    assert mean_interval([logs[:5]]) is None


def test_suites_alike_are_as_sure_as_all_their_prompts() -> None:
    """Two suites of equal spread: Welch's degrees of freedom are those of both together."""
    logs = np.array([-0.1, 0.0, 0.1])
    found = mean_interval([logs, logs + 1.0])
    assert found is not None
    half = 2.7764 * math.sqrt(0.01 / 6)
    assert found == pytest.approx((math.exp(0.5 - half), math.exp(0.5 + half)), rel=1e-4)


def test_what_lies_between_suites_is_no_doubt_unless_they_are_single_prompts() -> None:
    apart = [np.array([x, x]) for x in (0.0, 1.0, 2.0)]
    assert mean_interval(apart) == pytest.approx((math.e, math.e))
    single = [np.array([x]) for x in (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)]
    found = mean_interval(single)
    assert found is not None
    assert found[0] < 1.0 < math.exp(0.5) < found[1]
    assert mean_interval([*apart, np.array([0.0])]) is None  # four suites say too little
