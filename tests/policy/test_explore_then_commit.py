"""Two ways are tried in turn, and the faster one is kept, if by more than noise."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.policy.explore_then_commit import AGAIN, MARGIN, STEPS, TURNS, ExploreThenCommit

TRIAL = 2 * STEPS * TURNS


def hold(trial: ExploreThenCommit, old: float, new: float, steps: int = TRIAL) -> list[bool]:
    """Steps of three tokens that take so many seconds each; which way each went."""
    ways = []
    for _ in range(steps):
        ways.append(trial.new_way)
        trial.observe(3, new if trial.new_way else old)
    return ways


def test_both_ways_have_as_many_turns_and_the_old_one_begins() -> None:
    ways = hold(ExploreThenCommit(), 1.0, 1.0)
    assert ways == ([False] * STEPS + [True] * STEPS) * TURNS


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (1.0, 0.5, True),
        (1.0, 2.0, False),
        (1.0, 1.0, False),
        (1.0, 0.99 / MARGIN, True),
        (1.0, 1.01 / MARGIN, False),
    ],
)
def test_faster_way_is_kept(old: float, new: float, kept: bool) -> None:
    trial = ExploreThenCommit()
    hold(trial, old, new)
    assert set(hold(trial, old, new, AGAIN)) == {kept}


def test_tokens_count_and_not_steps() -> None:
    """The new way takes longer a step, and brings twice as many tokens."""
    trial = ExploreThenCommit()
    for _ in range(TRIAL):
        trial.observe(6 if trial.new_way else 3, 1.5 if trial.new_way else 1.0)
    assert trial.new_way


def test_it_is_tried_again_after_a_while() -> None:
    trial = ExploreThenCommit()
    hold(trial, 1.0, 0.5)
    assert set(hold(trial, 1.0, 2.0, AGAIN)) == {True}
    assert set(hold(trial, 1.0, 2.0, TRIAL)) == {False, True}
    assert set(hold(trial, 1.0, 2.0, AGAIN)) == {False}


def test_earlier_trials_do_not_weigh_on_later_ones() -> None:
    trial = ExploreThenCommit()
    for _ in range(3):
        hold(trial, 100.0, 1.0, TRIAL + AGAIN)
    hold(trial, 1.0, 2.0)
    assert not trial.new_way


@pytest.mark.parametrize("decided", [False, True])
def test_decided_contest_is_never_held(decided: bool) -> None:
    trial = ExploreThenCommit(decided=decided)
    ways = hold(trial, 1.0, 9.0, 2 * (TRIAL + AGAIN))
    assert set(ways) == {decided}


def test_steady_drift_of_the_machine_decides_nothing() -> None:
    """It gets 20 % slower while the trial lasts: the turns take that in turn."""
    trial = ExploreThenCommit()
    for step in range(TRIAL):
        trial.observe(3, 1.0 + 0.2 * step / TRIAL)
    assert not trial.new_way
    trial = ExploreThenCommit()
    for step in range(TRIAL):
        seconds = 1.2 - 0.2 * step / TRIAL
        trial.observe(3, seconds * (0.9 if trial.new_way else 1.0))
    assert trial.new_way


def test_noise_decides_seldom() -> None:
    """Ways alike, each step 5 % up or down: the new one is kept in few trials."""
    rng = np.random.default_rng(3)
    kept = 0
    for _ in range(200):
        trial = ExploreThenCommit()
        for _ in range(TRIAL):
            trial.observe(3, float(rng.normal(1.0, 0.05)))
        kept += trial.new_way
    assert kept < 20
