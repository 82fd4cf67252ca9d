"""What a plain pass takes, told by plain passes that are noisy, interrupted, or change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.policy.plain_pace import PlainPace
from tests.support.toys import examples


def after(*passes: float, pace: PlainPace | None = None) -> PlainPace:
    pace = PlainPace() if pace is None else pace
    for relative in passes:
        pace.observe(relative)
    return pace


@given(st.sampled_from([0.02, 0.1, 0.25]), st.integers(0, 10_000))
@examples(60)
def test_noise_makes_it_neither_faster_nor_slower(sigma: float, seed: int) -> None:
    """Else drafts would be measured by a plain pass that never was."""
    passes = np.exp(sigma * np.random.default_rng(seed).standard_normal(600))
    pace, known = PlainPace(), []
    for relative in passes:
        pace.observe(float(relative))
        known.append(pace.now)
    assert np.mean(known[50:]) == pytest.approx(passes.mean(), rel=0.05)


@pytest.mark.parametrize("change", [3.0, 1.5, 1.15, 1 / 1.15, 1 / 1.5, 1 / 3.0])
def test_change_is_believed_when_two_passes_tell(change: float) -> None:
    pace = after(*[1.0] * 20)
    pace.observe(change)
    assert pace.now == pytest.approx(1.0)
    assert pace.open
    pace.observe(change)
    assert pace.now == pytest.approx(change)
    assert not pace.open
    assert pace.fell == (change < 1.0)
    pace.observe(change)
    assert not pace.fell


def test_hiccup_moves_nothing() -> None:
    pace = after(*[1.0] * 20, 40.0, 1.0, 1.0)
    assert pace.now == pytest.approx(1.0)
    assert not pace.open


def test_noise_is_no_licence() -> None:
    """However loud it was, plain passes that take half as long are found out."""
    pace = after(*[3.0, 1.0 / 3.0] * 50)
    pace.now = 1.0
    after(1.0, 0.5, 0.5, pace=pace)
    assert pace.now == pytest.approx(0.5)
    assert pace.fell
