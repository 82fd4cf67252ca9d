"""Whole answers with the real cost curve, on a clock that only passes move.

Other tests of the policy replace the curve, or make steps by hand; what a prompt's pass does to
either is seen here.
"""

from __future__ import annotations

import pytest

from tests.policy.adversaries import PROMPT, Machine, Text, answers
from tests.policy.timed import OWN

SHAPE = [1.0 + 0.5 * n for n in range(16)]


@pytest.mark.parametrize(
    ("model", "levels"), [(False, 0), (True, 99), (True, 0)], ids=["alone", "good", "poor"]
)
@pytest.mark.parametrize("length", [2, 6])
def test_the_prompts_pass_is_not_taken_for_one_over_a_token(
    model: bool, levels: int, length: int
) -> None:
    """It drags what is known of T(1) along, answer by answer; short ones feel it most."""
    machine, text = Machine(SHAPE), Text(lambda at: levels)
    profile, _ = answers(machine, text, lengths=(length,) * 8, model=model)
    at_present = profile.target.seconds(1, PROMPT) * profile.target.pace
    assert at_present == pytest.approx(machine.one, rel=0.02)
    assert profile.target.pace == pytest.approx(1.0, rel=0.02)


def test_steps_add_up_to_the_time_that_passed() -> None:
    """Passes, planning, learning: nothing is lost between two steps, nothing counted twice."""
    steps = answers(Machine(SHAPE), Text(lambda at: 99), lengths=(200,))[1].steps
    assert sum(step.drafted for step in steps) > 50
    own = [step.seconds - step.target_seconds - step.draft_seconds for step in steps]
    assert min(own) > 0.0
    assert max(own) <= 6 * OWN
