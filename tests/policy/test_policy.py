"""Decisions of the policy, with fixed costs and scripted texts."""

from collections.abc import Sequence

import numpy as np
import pytest

from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.session import Session
from localspec.decoding.sources import Prediction
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.policy import reasons
from localspec.policy.model_state import ModelState
from localspec.policy.policy import AUTO, Policy
from localspec.policy.profile import PairProfile
from localspec.policy.reasons import COPYING, LEADING, RESTING
from tests.decoding.exact import step_of
from tests.drafters.composed import steps_of
from tests.policy.measuring import SHAPES, UNIT, ListedSource, curve, expects, profile_of
from tests.support.toys import SuccessorModel, ToyCache, session_of

SURE = [expects(1, 0.97)] * 40  # a long copy
POOR = [expects(1, 0.02)] * 3


class CaughtUpModel(DraftModel):
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
    cache = ToyCache(SuccessorModel({}, 4), capacity=1000)
    models = [CaughtUpModel(cache, 4)] if model else []
    limits = Limits(capacity, most, 8)
    return Policy(profile, [lookup], models, limits, branches=True, drawn=False)


def session(length: int = 10, count: int = 100) -> Session:
    return session_of([0] * length, count=count)


def draft_size(policy: Policy) -> int | None:
    """The size of the next draft; None for none."""
    at = session()
    plan = policy.plan(at)
    return None if plan.drafter is None else len(policy.draft(at, plan).tree)


def lookup_size(
    profile: PairProfile, predictions: Sequence[Prediction], *, most: int = 16
) -> int | None:
    """The same without a draft model."""
    return draft_size(policy_of(profile, predictions, model=False, most=most))


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
        (policy_of(profile_of(SHAPES["flat"], (1.0,))), 100, "has not paid off lately"),
        (policy_of(profile_of(SHAPES["flat"], (1.5,))), 100, "has not paid off lately"),
        (policy_of(profile_of(SHAPES["flat"], (3.0,))), 100, "has not paid off lately"),
        (policy_of(profile_of(SHAPES["flat"], None)), 100, "has not paid off lately"),
    ],
)
def test_steps_without_drafts_have_a_reason(policy: Policy, count: int, reason: str) -> None:
    plan = policy.plan(session(count=count))
    assert plan.drafter is None
    assert reason in plan.reason


@pytest.mark.parametrize("count", [2, 100])
def test_cheap_draft_model_drafts(count: int) -> None:
    plan = policy_of(profile_of(SHAPES["flat"], (0.05,))).plan(session(count=count))
    assert (plan.drafter, plan.reason) == (AUTO, LEADING)


def test_sure_copy_is_drafted_unless_every_token_costs_a_pass() -> None:
    profile = profile_of(SHAPES["flat"], None)
    plan = policy_of(profile, SURE, model=False).plan(session())
    assert (plan.drafter, plan.reason) == (AUTO, COPYING)
    assert (lookup_size(profile, SURE) or 0) >= 7
    assert lookup_size(profile_of(SHAPES["ruinous"], None), SURE) is None


@pytest.mark.parametrize("between", [6.0, 3.5])
def test_cheap_large_pass_is_found(between: float) -> None:
    """A pass over 12 tokens is cheap, over 2 to 11 expensive."""
    profile = profile_of([1.0, *(between,) * 10, 1.3], None)
    assert lookup_size(profile, SURE, most=11) == 11


def test_throughput_raises_the_required_gain() -> None:
    policy = policy_of(profile_of(SHAPES["steep"], None), [expects(1, 0.7)], model=False)
    assert draft_size(policy) == 1
    for tokens, seconds, wanted in ((3, UNIT, None), (1, 2 * UNIT, 1)):
        step = step_of(Plan(None), seconds=(seconds, seconds, 0.0))
        step.tokens[:] = [1] * tokens
        for _ in range(300):
            policy.observe(step)
        assert draft_size(policy) == wanted, "the rate is never below plain decoding's"


@pytest.mark.parametrize(("seconds", "pauses"), [(5e-4, True), (UNIT, False)])
def test_planning_pauses_with_short_passes(seconds: float, pauses: bool) -> None:
    """With passes of half a millisecond, few steps are planned without result."""
    profile, lookup = profile_of(SHAPES["ruinous"], None), ListedSource(())
    profile.target = curve(SHAPES["ruinous"], seconds)
    policy, found = policy_of(profile, lookup, model=False), []
    for _ in range(400):
        plan = policy.plan(session())
        found.append(plan.reason)
        policy.observe(step_of(plan, seconds=(seconds, seconds, 0.0)))
    assert set(found) == ({RESTING, reasons.NOTHING} if pauses else {reasons.NOTHING})
    planned = [n for n, reason in enumerate(found) if reason != RESTING]
    assert max(np.diff(planned)) <= 1 + (Policy.LONGEST_REST if pauses else 0)
    assert len(planned) < 80 or not pauses, "of 400 steps"


def test_draft_ends_the_pauses() -> None:
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
    unknown: int,
    back: int,
    *,
    wrongly_sure: bool = False,
    wide: int = 64,
    price: float = 0.2,
) -> list[Step]:
    """The text 0 1 2 3 …, which the draft model knows, then does not, then knows again. Nothing
    repeats, so that the n-gram cannot draft."""
    count = known + unknown + back
    size = count + 8
    doubts = 0.7 if wrongly_sure else 0.1
    followers = {token: (token + 1, 0.7) for token in range(size - 1)}
    predictions = followers | dict.fromkeys(range(known, known + unknown), (0, doubts))
    cache = ToyCache(SuccessorModel(predictions, size), capacity=4 * size)
    profile = profile_of(SHAPES["steep"], [price] * wide)
    parts, model = Parts(DraftModel(cache, size)), SuccessorModel(followers, size)
    steps = steps_of(Drafting(), parts, profile, model, [0], count)
    assert [token for step in steps for token in step.tokens] == list(range(1, count + 1))
    return steps


def uses_model(step: Step) -> bool:
    return step.plan.reason == LEADING


LONGEST = ModelState.LONGEST + ModelState.BURST  # steps between the beginnings of two trials


@pytest.mark.parametrize(("unknown", "wide"), [(60, 64), (200, 64), (400, 64), (400, 16)])
def test_draft_model_is_left_out_and_used_again(unknown: int, wide: int) -> None:
    """It is left out within 20 tokens of an unknown text, and used again with the next trial, which
    comes at most as late as the unknown text was long."""
    known, back = 150, 500
    steps = scripted(known, unknown, back, wide=wide)

    def between(start: int, end: int) -> list[Step]:
        return [step for step in steps if start <= step.context_length < end]

    before = between(20, known)
    assert sum(uses_model(step) for step in before) > 0.9 * len(before)
    lost = [step.context_length for step in between(known, known + unknown) if not uses_model(step)]
    assert lost, "it is never left out"
    assert lost[0] - known <= 20
    late = between(known + 40, known + unknown)
    assert sum(uses_model(step) for step in late) <= 0.1 * len(late) + ModelState.BURST
    change = known + unknown
    again = [step.context_length for step in between(change, change + back) if uses_model(step)]
    assert again, "it is never used again"
    assert again[0] - change <= min(unknown, LONGEST) + 20
    settled = between(again[0] + 40, change + back)
    assert sum(uses_model(step) for step in settled) > 0.8 * len(settled)


def test_draft_model_as_slow_as_the_target_is_rarely_used() -> None:
    steps = scripted(300, 0, 0, price=1.0)
    assert sum(uses_model(step) for step in steps) <= 0.05 * len(steps)


def test_wrongly_confident_draft_model_is_used_again() -> None:
    """Trials show when its confidence is meaningful again."""
    steps = scripted(150, 60, 800, wrongly_sure=True)
    lost = next(s.context_length for s in steps if s.context_length >= 150 and not uses_model(s))
    assert lost - 150 <= 20
    settled = [step for step in steps if step.context_length >= 610]
    assert sum(uses_model(step) for step in settled) > 0.5 * len(settled)


def test_useless_trials_are_rare_and_short() -> None:
    steps = [step for step in scripted(100, 900, 1) if step.context_length > 150]
    trials = [n for n, step in enumerate(steps) if uses_model(step)]
    distances = np.diff(trials)
    assert len(trials) <= 0.03 * 900
    assert max(distances) <= LONGEST
    assert max(distances) >= 0.9 * ModelState.LONGEST
