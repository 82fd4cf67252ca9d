"""What a plain pass takes, told by plain passes that are noisy, interrupted, or change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.policy.baseline import Baseline
from tests.support.toys import examples


def after(*passes: float, baseline: Baseline | None = None) -> Baseline:
    baseline = Baseline() if baseline is None else baseline
    for relative in passes:
        baseline.observe(relative)
    return baseline


@given(st.sampled_from([0.02, 0.1, 0.25]), st.integers(0, 10_000))
@examples(60)
def test_noise_makes_it_neither_faster_nor_slower(sigma: float, seed: int) -> None:
    """Else drafts would be measured by a plain pass that never was."""
    passes = np.exp(sigma * np.random.default_rng(seed).standard_normal(600))
    baseline, known = Baseline(), []
    for relative in passes:
        baseline.observe(float(relative))
        known.append(baseline.now)
    assert np.mean(known[50:]) == pytest.approx(passes.mean(), rel=0.05)


@pytest.mark.parametrize("change", [3.0, 1.5, 1.15, 1 / 1.15, 1 / 1.5, 1 / 3.0])
def test_change_is_believed_when_two_passes_tell(change: float) -> None:
    baseline = after(*[1.0] * 20)
    baseline.observe(change)
    assert baseline.now == pytest.approx(1.0)
    assert baseline.open
    baseline.observe(change)
    assert baseline.now == pytest.approx(change)
    assert not baseline.open
    assert baseline.fell == (change < 1.0)
    baseline.observe(change)
    assert not baseline.fell


def test_hiccup_moves_nothing() -> None:
    baseline = after(*[1.0] * 20, 40.0, 1.0, 1.0)
    assert baseline.now == pytest.approx(1.0)
    assert not baseline.open


def test_noise_is_no_licence() -> None:
    """However loud it was, plain passes that take half as long are found out."""
    baseline = after(*[3.0, 1.0 / 3.0] * 50)
    baseline.now = 1.0
    after(1.0, 0.5, 0.5, baseline=baseline)
    assert baseline.now == pytest.approx(0.5)
    assert baseline.fell
