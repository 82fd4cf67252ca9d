"""Whole answers with the real cost curve, on a clock that only passes move.

Other tests of the policy replace the curve, or make steps by hand; what a prompt's pass does to
either is seen here.
"""

from __future__ import annotations

import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import drive, speculate
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from tests.policy.timed import OWN, Clock, TimedCache, TimedTarget
from tests.support.toys import GREEDY, ToyModel, session_of, started

ONE = 0.02  # seconds of a pass over one token
PROMPT = 400  # tokens that the prompt of every answer adds


def seconds(tokens: int) -> float:
    """Of a pass over so many."""
    return ONE * (1.0 + 0.5 * (tokens - 1))


LIVELY = started([[5, 3, 2], [1, 5, 4], [4, 1, 5]])
OTHER = started([[1, 2, 7], [7, 1, 2], [2, 7, 1]])


def answers(
    count: int, length: int, *, drafts: ToyModel | None
) -> tuple[PairProfile, list[list[Step]], list[float]]:
    """Short answers to long prompts, one after the other, as one engine gives them."""
    clock, profile = Clock(), PairProfile()
    profile.target.learn({n: seconds(n) for n in (1, 2, 4, 8, 16)}, 0)
    index, found, rates = NgramIndex(), [], []
    model = (
        None
        if drafts is None
        else DraftModel(TimedCache(drafts, clock, lambda n: 0.1 * ONE * n), drafts.size)
    )
    for number in range(count):
        lookups = [NgramSource(index)]
        models = [] if model is None else [model]
        for source in models:
            if not profile.source(source).costs:
                profile.source(source).costs.learn({n: 0.1 * ONE * n for n in (1, 2, 4, 8)}, 0)
        target = TimedTarget(LIVELY, clock, seconds)
        policy = Policy(profile, lookups, models, target.limits, branches=True, drawn=False)
        session = session_of([number % 3] * PROMPT, params=GREEDY, count=length)
        policy.begin(session.context)
        requests = speculate(session, policy, policy, GreedyMatch(), clock=clock)
        found.append(list(drive(session, requests, target)))
        rates.append(policy._tokens / policy._seconds / profile.target.pace)
    return profile, found, rates


@pytest.mark.parametrize("drafts", [None, LIVELY, OTHER], ids=["alone", "good", "poor"])
@pytest.mark.parametrize("length", [2, 6])
def test_the_prompts_pass_is_not_taken_for_one_over_a_token(
    drafts: ToyModel | None, length: int
) -> None:
    """It drags what is known of T(1) along, answer by answer; short ones feel it most."""
    profile, _, _ = answers(8, length, drafts=drafts)
    at_present = profile.target.seconds(1, PROMPT) * profile.target.pace
    assert at_present == pytest.approx(ONE, rel=0.02)
    assert profile.target.pace == pytest.approx(1.0, rel=0.02)


def test_steps_add_up_to_the_time_that_passed() -> None:
    """Passes, planning, learning: nothing is lost between two steps, nothing counted twice."""
    _, found, _ = answers(1, 200, drafts=LIVELY)
    steps = found[0]
    assert sum(step.drafted for step in steps) > 50
    own = [step.seconds - step.target_seconds - step.draft_seconds for step in steps]
    assert min(own) > 0.0
    assert max(own) <= 6 * OWN
