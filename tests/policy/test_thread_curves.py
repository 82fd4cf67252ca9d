"""A curve for each count of threads."""

from __future__ import annotations

import pytest

from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.thread_curves import ThreadCurves


def learned(curve: CostCurve, one: float) -> None:
    curve.learn({1: one, 4: 2 * one}, 0)


def test_a_count_keeps_its_curve() -> None:
    curves = ThreadCurves()
    curves.use(2)
    assert not curves
    learned(curves.now, 0.01)
    curves.use(1)
    learned(curves.now, 0.018)
    curves.measured()
    curves.use(2)
    assert curves.now.seconds(1, 0) == pytest.approx(0.01)
    curves.use(1)
    assert curves.now.seconds(1, 0) == pytest.approx(0.018)


def test_a_count_that_was_never_measured_borrows_the_shape_and_finds_its_pace() -> None:
    curves = ThreadCurves()
    curves.use(2)
    learned(curves.now, 0.01)
    curves.use(1, 1.8)
    assert curves.borrowed
    now = curves.now
    assert now.seconds(4, 0) / now.seconds(1, 0) == pytest.approx(2.0)
    assert now.seconds(1, 0) * now.pace == pytest.approx(0.018)
    assert list(curves.as_dict()) == ["2"], "what is borrowed is not kept"
    now.observe(1, 0, 0.03)
    curves.use(2)
    assert curves.now.pace == 1.0
    curves.use(1)
    assert curves.now is now
    curves.measured()
    assert list(curves.as_dict()) == ["1", "2"]


def test_what_is_stored_comes_back_at_the_present_count() -> None:
    curves = ThreadCurves()
    curves.use(2)
    learned(curves.now, 0.01)
    again = ThreadCurves()
    again.use(1)
    again.restore(curves.as_dict())
    assert again.threads == 1
    assert again.borrowed
    again.use(2)
    assert not again.borrowed
    assert again.now.as_dict() == curves.now.as_dict()


@pytest.mark.parametrize("stored", [None, [], {"two": {}}, {"-2": {}}, {"2": {"0": {"0": 1.0}}}])
def test_no_such_record(stored: object) -> None:
    with pytest.raises(ValueError):
        ThreadCurves().restore(stored)


def test_the_profile_swaps_the_target_curve() -> None:
    profile = PairProfile()
    profile.use_threads(2, 2)
    learned(profile.target, 0.01)
    profile.use_threads(1, 1, lambda a, b: 1.8)
    assert profile.threads == 1
    assert profile.target.pace == pytest.approx(1.8)
    kept = profile.as_dict()
    again = PairProfile()
    again.use_threads(2, 2)
    again.restore(kept)
    assert again.target.seconds(1, 0) == pytest.approx(0.01)
    assert again.target.pace == 1.0
