"""The policy: what it decides, from made-up costs and scripted texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.session import Session
from localspec.decoding.sources import Prediction
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy import reasons
from localspec.policy.model_state import ModelState
from localspec.policy.policy import AUTO, Policy
from localspec.policy.profile import PairProfile
from localspec.policy.reasons import COPYING, LEADING, LOSING, RESTING
from tests.decoding.exact import step_of
from tests.policy.measuring import (
    SHAPES,
    TILES,
    UNIT,
    ListedSource,
    clockless,
    curve,
    expects,
    profile_of,
)
from tests.support.toys import GREEDY, Follows, ToyCache, ToyTarget, session_of

SURE = [expects(1, 0.97)] * 40  # a long copy
POOR = [expects(1, 0.02)] * 3


class ReadUp(DraftModel):
    """A draft model that has read all but the last token."""

    def unread(self, context: Sequence[int]) -> int:
        return 1


def policy_of(
    profile: PairProfile,
    predictions: Sequence[Prediction] | ListedSource = (),
    *,
    model: bool = True,
    most: int = 16,
    capacity: int = 1000,
) -> Policy:
    lookup = predictions if isinstance(predictions, ListedSource) else ListedSource(predictions)
    cache = ToyCache(Follows({}, 4), capacity=1000)
    models = [ReadUp(cache, 4)] if model else []
    limits = Limits(capacity, most, 8)
    return Policy(profile, [lookup], models, limits, branches=True, drawn=False)


def session(length: int = 10, count: int = 100) -> Session:
    return session_of([0] * length, count=count)


def drafted(policy: Policy, at: Session | None = None) -> int | None:
    """Tokens that are verified at the next step; None where nothing is drafted."""
    at = at or session()
    plan = policy.plan(at)
    return None if plan.drafter is None else len(policy.draft(at, plan).tree)


def looked_up(
    profile: PairProfile, predictions: Sequence[Prediction], *, most: int = 16
) -> int | None:
    """The same where there is no draft model."""
    return drafted(policy_of(profile, predictions, model=False, most=most))


@pytest.mark.parametrize(
    ("policy", "count", "reason"),
    [
        (policy_of(PairProfile(), SURE), 100, "the cost of a pass is not measured yet"),
        (policy_of(profile_of(SHAPES["flat"]), SURE), 1, "the answer ends with the next token"),
        (
            policy_of(profile_of(SHAPES["flat"]), SURE, capacity=10),
            100,
            "the answer ends with the next token",
        ),
        (policy_of(profile_of(SHAPES["flat"], None), model=False), 100, "nothing repeats"),
        (policy_of(profile_of(SHAPES["flat"], None), POOR, model=False), 100, "unlikely to pay"),
        (policy_of(profile_of(SHAPES["flat"], (1.0,))), 100, "did not pay lately"),
        (policy_of(profile_of(SHAPES["flat"], (1.5,))), 100, "did not pay lately"),
        (policy_of(profile_of(SHAPES["flat"], (3.0,))), 100, "did not pay lately"),
        (policy_of(profile_of(SHAPES["flat"], None)), 100, "did not pay lately"),
    ],
)
def test_nothing_is_drafted_and_it_is_said_why(policy: Policy, count: int, reason: str) -> None:
    plan = policy.plan(session(count=count))
    assert plan.drafter is None
    assert reason in plan.reason


@pytest.mark.parametrize("count", [2, 100])
def test_cheap_draft_model_is_asked(count: int) -> None:
    plan = policy_of(profile_of(SHAPES["flat"], (0.05,))).plan(session(count=count))
    assert (plan.drafter, plan.reason) == (AUTO, LEADING)


def test_sure_copy_is_long_where_the_curve_is_flat() -> None:
    profile = profile_of(SHAPES["flat"], None)
    plan = policy_of(profile, SURE, model=False).plan(session())
    assert (plan.drafter, plan.reason) == (AUTO, COPYING)
    assert (looked_up(profile, SURE) or 0) >= 7


def test_copy_is_short_or_none_where_every_token_costs_a_pass() -> None:
    assert looked_up(profile_of(SHAPES["ruinous"], None), SURE) is None


def test_three_tokens_rather_than_two_where_a_pass_over_four_is_cheaper() -> None:
    found = set()
    for chance in np.linspace(0.3, 0.95, 60).tolist():
        found.add(looked_up(profile_of(TILES, None), [expects(1, chance)] * 3))
    assert found == {None, 3}


@pytest.mark.parametrize("between", [6.0, 3.5])
def test_dip_beyond_a_rise_is_found(between: float) -> None:
    """A pass over 12 is a bargain where one over 2 to 11 is none."""
    profile = profile_of([1.0, *(between,) * 10, 1.3], None)
    assert looked_up(profile, SURE, most=11) == 11


def test_rate_is_learned_and_raises_what_a_draft_has_to_bring() -> None:
    """Tokens per second to be had: a draft has to bring more of them than other steps do."""
    policy = policy_of(profile_of(SHAPES["steep"], None), [expects(1, 0.7)], model=False)
    assert drafted(policy) == 1
    for tokens, seconds, wanted in ((3, UNIT, None), (1, 2 * UNIT, 1)):
        told = step_of(Plan(None), seconds=(seconds, seconds, 0.0))
        told.tokens[:] = [1] * tokens
        for _ in range(300):
            policy.observe(told)
        assert drafted(policy) == wanted, "the rate is never below plain decoding's"


def test_new_answer_drops_what_was_particular_to_the_last() -> None:
    profile, lookup = profile_of(SHAPES["flat"]), ListedSource(SURE)
    policy_of(profile, lookup).plan(session())
    estimator = profile.source(lookup).estimators["any"]
    estimator.bias = 1.0
    policy_of(profile, lookup)
    assert estimator.bias == 0.0


@pytest.mark.parametrize(("seconds", "rests"), [(5e-4, True), (UNIT, False)])
def test_short_passes_are_not_held_up_by_planning(seconds: float, rests: bool) -> None:
    """Where a pass takes half a millisecond, few steps are planned in vain, and it is said."""
    profile, lookup = profile_of(SHAPES["ruinous"], None), ListedSource(())
    profile.target = curve(SHAPES["ruinous"], seconds)
    policy, said = policy_of(profile, lookup, model=False), []
    for _ in range(400):
        plan = policy.plan(session())
        said.append(plan.reason)
        policy.observe(step_of(plan, seconds=(seconds, seconds, 0.0)))
    assert set(said) == ({RESTING, reasons.NOTHING} if rests else {reasons.NOTHING})
    planned = [n for n, reason in enumerate(said) if reason != RESTING]
    assert max(np.diff(planned)) <= 1 + (Policy.LONGEST_REST if rests else 0)
    assert len(planned) < 80 or not rests, "of 400 steps"


def test_what_is_drafted_ends_the_rests() -> None:
    profile, lookup = profile_of(SHAPES["flat"], None), ListedSource(())
    profile.target = curve(SHAPES["flat"], 5e-4)
    policy, at = policy_of(profile, lookup, model=False), session()
    for _ in range(100):
        policy.observe(step_of(policy.plan(at), seconds=(5e-4, 5e-4, 0.0)))
    lookup.predictions = SURE
    while (plan := policy.plan(at)).drafter is None:
        assert plan.reason == RESTING
    assert policy.draft(at, plan).tree.tokens
    lookup.predictions = ()
    assert [policy.plan(at).reason for _ in range(2)] == [reasons.NOTHING] * 2


def scripted(
    known: int,
    strange: int,
    back: int,
    *,
    wrongly_sure: bool = False,
    wide: int = 64,
    price: float = 0.2,
) -> list[Step]:
    """The text 0 1 2 3 …, which the draft model knows, then does not, then knows again.

    No token comes twice, so that the n-gram is of no use.
    """
    size = known + strange + back + 8
    doubts = 0.7 if wrongly_sure else 0.1
    says = {token: (token + 1, 0.7) for token in range(size - 1)}
    predictions = says | dict.fromkeys(range(known, known + strange), (0, doubts))
    cache = ToyCache(Follows(predictions, size), capacity=4 * size)
    profile = profile_of(SHAPES["steep"], [price] * wide)
    lookups = [NgramSource(NgramIndex())]
    models = [DraftModel(cache, size)]
    limits = Limits(4 * size, 8, 8)
    policy = Policy(profile, lookups, models, limits, branches=True, drawn=False)
    text = session_of([0], size=size, params=GREEDY, count=known + strange + back)
    policy.begin(text.context)
    target = ToyTarget(Follows(says, size), capacity=4 * size, max_leaves=8)
    clockless(policy, profile)
    steps = list(drive(text, speculate(text, policy, GreedyMatch()), target))
    assert text.context == list(range(len(text.context)))
    return steps


def asked(step: Step) -> bool:
    """Whether the draft model was asked for a draft."""
    return step.plan.reason == LEADING


LONGEST = ModelState.LONGEST + ModelState.BURST  # steps between the beginnings of two trials


@pytest.mark.parametrize("strange", [60, 200, 400])
def test_draft_model_is_given_up_and_found_again(strange: int) -> None:
    """A text it knows, one it does not, and one it knows again.

    It is given up within 20 tokens, and found again with the next trial, which is at most as far
    off as the strange text was long.
    """
    known, back = 150, 500
    steps = scripted(known, strange, back)

    def between(start: int, end: int) -> list[Step]:
        return [step for step in steps if start <= step.context_length < end]

    before = between(20, known)
    assert sum(asked(step) for step in before) > 0.9 * len(before)
    lost = [step.context_length for step in between(known, known + strange) if not asked(step)]
    assert lost, "it is never given up"
    assert lost[0] - known <= 20
    late = between(known + 40, known + strange)
    assert sum(asked(step) for step in late) <= 0.1 * len(late) + ModelState.BURST
    change = known + strange
    again = [step.context_length for step in between(change, change + back) if asked(step)]
    assert again, "it is never asked again"
    assert again[0] - change <= min(strange, LONGEST) + 20
    settled = between(again[0] + 40, change + back)
    assert sum(asked(step) for step in settled) > 0.8 * len(settled)


def test_draft_model_as_dear_as_the_target_is_hardly_asked() -> None:
    steps = scripted(300, 0, 0, price=1.0)
    assert sum(asked(step) for step in steps) <= 0.05 * len(steps)


def test_draft_model_that_was_wrongly_sure_of_itself_is_believed_again() -> None:
    """Its confidence says nothing any more; trials teach that it does."""
    change = 150 + 60
    steps = scripted(150, 60, 800, wrongly_sure=True)
    lost = next(s.context_length for s in steps if s.context_length >= 150 and not asked(s))
    assert lost - 150 <= 20
    settled = [step for step in steps if step.context_length >= change + 400]
    assert sum(asked(step) for step in settled) > 0.5 * len(settled)


def test_long_absence_does_not_keep_the_draft_model_out_for_good() -> None:
    """What it missed costs five passes of the target to read; 600 tokens are left to earn that."""
    change = 150 + 400
    steps = scripted(150, 400, 900, wide=16)
    settled = [step for step in steps if step.context_length >= change + 400]
    assert sum(asked(step) for step in settled) > 0.8 * len(settled)


def test_trials_are_rare_and_short_where_nothing_comes_of_them() -> None:
    differs = 900
    steps = [step for step in scripted(100, differs, 1) if step.context_length > 150]
    trials = [n for n, step in enumerate(steps) if asked(step)]
    apart = np.diff(trials)
    assert len(trials) <= 0.03 * differs
    assert max(apart) <= LONGEST
    assert max(apart) >= 0.9 * ModelState.LONGEST


def test_every_step_without_a_draft_says_why() -> None:
    steps = scripted(80, 200, 80)
    for step in steps:
        assert step.plan.reason, step
        assert not step.drafted or step.plan.drafter == AUTO
        assert step.drafted or step.plan.drafter is None or step.draft.reason
    assert LOSING in {step.plan.reason for step in steps}
