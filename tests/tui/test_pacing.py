"""How often the screen may be redrawn."""

from __future__ import annotations

import pytest

from localspec.tui.control.conversation_display import LEAST, MOST, SHARE, RedrawBudget
from tests.support.clock import Clock


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


def test_it_never_looks_stuck_nor_hurries_in_vain() -> None:
    assert paused([0.0, 0.0]) == [LEAST, LEAST]
    assert paused([5.0, 5.0]) == [MOST, MOST]
