"""How often the screen may be redrawn."""

from __future__ import annotations

import pytest

from localspec.tui.control.pacing import LEAST, MANY, MOST, SHARE, SHARE_OF_MANY, RedrawBudget


class Clock:
    """Processor seconds of a screen."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def paused(costs: list[float], *, cores: int = 2) -> list[float]:
    """The pauses after redraws of those costs, in seconds."""
    clock = Clock()
    budget = RedrawBudget(cores=cores, clock=clock)
    assert budget.start() == LEAST
    pauses = []
    for cost in costs:
        clock.now += cost
        pauses.append(budget.pause())
    return pauses


def test_redraws_take_their_share_and_no_more() -> None:
    assert paused([0.004]) == [pytest.approx(0.004 / SHARE)]
    assert paused([0.006] * 5) == pytest.approx([0.006 / SHARE] * 5)


def test_the_share_is_larger_where_cores_are_free() -> None:
    assert paused([0.02], cores=MANY) == [pytest.approx(0.02 / SHARE_OF_MANY)]
    assert paused([0.02], cores=MANY - 1) == [MOST]


def test_it_never_looks_stuck_nor_hurries_in_vain() -> None:
    assert paused([0.0, 0.0]) == [LEAST, LEAST]
    assert paused([5.0, 5.0]) == [MOST, MOST]


def test_one_expensive_redraw_is_soon_forgotten() -> None:
    pauses = paused([0.002, 0.012, *[0.002] * 8])
    assert max(pauses) == pauses[1] < 0.012 / SHARE
    assert pauses[-1] == pytest.approx(0.002 / SHARE, rel=0.1)
    assert pauses[1:] == sorted(pauses[1:], reverse=True)


def test_what_the_screen_did_before_the_answer_does_not_count() -> None:
    clock = Clock()
    budget = RedrawBudget(cores=2, clock=clock)
    clock.now += 60.0
    budget.start()
    clock.now += 0.002
    assert budget.pause() == pytest.approx(0.002 / SHARE)
    clock.now += 60.0
    assert budget.start() == LEAST
    clock.now += 0.003
    assert budget.pause() == pytest.approx(0.003 / SHARE)
