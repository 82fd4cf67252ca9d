"""What plain passes take longer behind a pass of another size, told by pairs of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from localspec.policy.size_change import SizeChange


def pairs(change: SizeChange, longer: float, paces: np.ndarray, noise: np.ndarray) -> SizeChange:
    for pace, (first, second) in zip(paces, noise, strict=True):
        change.observe(float(pace * longer * first), alike=False)
        change.observe(float(pace * second), alike=True)
    return change


def noise(count: int, sigma: float) -> np.ndarray:
    return np.exp(sigma * np.random.default_rng(5).standard_normal((count, 2)))


@pytest.mark.parametrize("longer", [1.0, 1.02, 1.05])
def test_pairs_tell_it_whatever_the_pace_does(longer: float) -> None:
    """A machine that is three times slower now and then, and drifts meanwhile."""
    paces = np.where(np.arange(80) % 20 < 5, 3.0, 1.0) * np.linspace(1.0, 1.5, 80)
    change = pairs(SizeChange(), longer, paces, noise(80, 0.01))
    assert change.factor == pytest.approx(longer, abs=0.006)


def test_hiccups_move_it_little() -> None:
    disturbed = noise(80, 0.01)
    disturbed[::10, 0] *= 8.0
    change = pairs(SizeChange(), 1.02, np.ones(80), disturbed)
    assert change.factor == pytest.approx(1.02, abs=0.02)


def test_plain_passes_never_look_slower_than_they_were() -> None:
    change = pairs(SizeChange(), 0.9, np.ones(20), np.ones((20, 2)))
    assert change.factor == 1.0


def test_pair_is_one_pass_right_behind_the_other() -> None:
    change = SizeChange()
    change.observe(1.1, alike=False)
    change.interrupt()
    change.observe(1.0, alike=True)
    change.observe(1.0, alike=True)
    assert change.pairs == 0
    assert change.factor == 1.0


def test_seconds_of_pairs_are_asked_for_until_it_is_known() -> None:
    change = SizeChange()
    for _ in range(SizeChange.ENOUGH):
        change.observe(1.02, alike=False)
        assert change.open
        change.observe(1.0, alike=True)
        assert not change.open
    change.observe(1.02, alike=False)
    assert not change.open


def test_stored_and_taken_up_again() -> None:
    change = pairs(SizeChange(), 1.04, np.ones(9), np.ones((9, 2)))
    again = SizeChange.from_dict(json.loads(json.dumps(change.as_dict())))
    assert again.factor == change.factor
    assert not again.open


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"longer": 3.0, "pairs": 1},
        {"longer": 0.0, "pairs": -1},
        {"longer": "x", "pairs": 1},
    ],
)
def test_damaged_record_is_refused(stored: object) -> None:
    with pytest.raises(ValueError, match=r"no such|could not convert"):
        SizeChange.from_dict(stored)
