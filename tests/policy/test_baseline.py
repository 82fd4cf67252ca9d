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
    assert baseline.strange
    baseline.observe(change)
    assert baseline.now == pytest.approx(change)
    assert not baseline.strange


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


# Plain passes behind drafts take longer than plain decoding's: pairs of plain passes tell by how
# much, as both run at nearly the same time.


def pairs(longer: float, paces: np.ndarray, noise: np.ndarray) -> float:
    """What a pass behind a draft that took 1 counts as, after pairs at these paces."""
    baseline = Baseline()
    for pace, (first, second) in zip(paces, noise, strict=True):
        baseline.interrupt()
        baseline.observe(float(pace * longer * first), alike=False)
        baseline.observe(float(pace * second))
    return baseline.observe(1.0, alike=False)


def noise(count: int, sigma: float) -> np.ndarray:
    return np.exp(sigma * np.random.default_rng(5).standard_normal((count, 2)))


@pytest.mark.parametrize("longer", [1.0, 1.02, 1.05])
def test_pairs_tell_it_whatever_the_pace_does(longer: float) -> None:
    """A machine that is three times slower now and then, and drifts meanwhile."""
    paces = np.where(np.arange(80) % 20 < 5, 3.0, 1.0) * np.linspace(1.0, 1.5, 80)
    assert pairs(longer, paces, noise(80, 0.01)) == pytest.approx(1.0 / longer, abs=0.006)


def test_plain_passes_never_look_slower_than_they_were() -> None:
    assert pairs(0.9, np.ones(20), np.ones((20, 2))) == 1.0


def test_seconds_of_pairs_are_asked_for_until_it_is_known() -> None:
    baseline = Baseline()
    for _ in range(Baseline.ENOUGH):
        baseline.observe(1.02, alike=False)
        assert baseline.open
        baseline.observe(1.0)
        assert not baseline.open
    baseline.observe(1.02, alike=False)
    assert not baseline.open
