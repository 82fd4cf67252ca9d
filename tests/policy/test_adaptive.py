"""The adaptive planner: what it decides, from made-up costs and scripted texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.auto_sources import Prediction
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.loop import speculate
from localspec.decoding.session import Session
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.adaptive import AdaptivePlanner
from localspec.policy.answer_state import ModelState
from localspec.policy.cost_curve import CostCurve
from localspec.policy.draft_tree import DraftTreeBuilder
from localspec.policy.worth import DraftValue
from localspec.policy.naps import Naps
from localspec.policy.profile import PairProfile
from localspec.policy.plan import AUTO, AdaptivePlan, PlannedDraft
from localspec.policy.reasons import ASLEEP, COPYING, HOPELESS, LEADING, REVIEWING, UNLIKELY
from tests.decoding.steps import step_of
from tests.policy.lookups import ListedSource, expects
from tests.policy.measuring import SHAPES, TILES, UNIT, Clockless, profile_of
from tests.support.toys import GREEDY, Follows, ToyCache, ToyTarget, session_of

SURE = [expects(1, 0.97)] * 40
"""A long copy."""
POOR = [expects(1, 0.02)] * 3


class ReadUp(DraftModelSource):
    """A draft model that has read all but the last token."""

    def unread(self, session: Session) -> int:
        return 1


def planner_of(
    profile: PairProfile,
    predictions: Sequence[Prediction] | ListedSource = (),
    *,
    model: bool = True,
    most: int = 16,
    leaves: int = 8,
    capacity: int = 1000,
    greedy: bool = True,
    drawn: bool = True,
) -> AdaptivePlanner:
    lookup = predictions if isinstance(predictions, ListedSource) else ListedSource(predictions)
    cache = ToyCache(Follows({}, 4), capacity=1000)
    return AdaptivePlanner(
        profile,
        [lookup],
        [ReadUp(DraftModel(cache, 4))] if model else [],
        Limits(capacity, most, leaves),
        greedy=greedy,
        trees=True,
        drawn=drawn,
    )


def session(length: int = 10, count: int = 100) -> Session:
    return session_of([0] * length, count=count)


def kept(profile: PairProfile, plan: Plan, lookup: ListedSource, at: Session) -> int:
    """Tokens that are verified of what was looked up, padding included."""
    return len(DraftTreeBuilder([lookup], [], profile).draft(at, plan).tree)


def looked_up(
    profile: PairProfile, predictions: Sequence[Prediction], *, most: int = 16
) -> int | None:
    """Tokens that are verified where there is no draft model; None where none are."""
    lookup, at = ListedSource(predictions), session()
    plan = planner_of(profile, lookup, model=False, most=most).plan(at)
    return None if plan.drafter is None else kept(profile, plan, lookup, at)


def test_without_a_curve_nothing_is_drafted() -> None:
    plan = planner_of(PairProfile(), SURE).plan(session())
    assert plan.drafter is None
    assert plan.reason == "the cost of a pass is not measured yet"


def test_last_token_is_not_drafted_for() -> None:
    planner = planner_of(profile_of(SHAPES["flat"]), SURE)
    plan = planner.plan(session(count=1))
    assert (plan.drafter, plan.reason) == (None, "the answer ends with the next token")
    assert planner.plan(session(count=2)).drafter == AUTO
    full = planner_of(profile_of(SHAPES["flat"]), SURE, capacity=10)
    assert full.plan(session(10)).drafter is None


@pytest.mark.parametrize(
    ("predictions", "reason"), [((), "nothing repeats"), (POOR, "too unlikely to pay")]
)
def test_without_a_model_nothing_is_drafted_where_nothing_repeats(
    predictions: Sequence[Prediction], reason: str
) -> None:
    plan = planner_of(profile_of(SHAPES["flat"], None), predictions, model=False).plan(session())
    assert plan.drafter is None
    assert reason in plan.reason


@pytest.mark.parametrize("price", [1.0, 3.0])
def test_draft_model_that_costs_what_it_could_bring_is_left_alone(price: float) -> None:
    plan = planner_of(profile_of(SHAPES["flat"], (price,))).plan(session())
    assert plan.drafter is None
    assert "not paid for itself" in plan.reason


def test_cheap_draft_model_is_asked() -> None:
    plan = planner_of(profile_of(SHAPES["flat"], (0.05,))).plan(session())
    assert (plan.drafter, plan.reason) == (AUTO, LEADING)
    assert isinstance(plan, AdaptivePlan)
    assert plan.asks == "model"


def test_unmeasured_draft_model_is_not_asked() -> None:
    plan = planner_of(profile_of(SHAPES["flat"], None)).plan(session())
    assert plan.drafter is None


def test_sure_copy_is_long_where_the_curve_is_flat() -> None:
    profile = profile_of(SHAPES["flat"], None)
    plan = planner_of(profile, SURE, model=False).plan(session())
    assert (plan.drafter, plan.reason) == (AUTO, COPYING)
    assert (looked_up(profile, SURE) or 0) >= 7


def test_copy_is_short_or_none_where_every_token_costs_a_pass() -> None:
    assert looked_up(profile_of(SHAPES["ruinous"], None), SURE) is None


def test_three_tokens_rather_than_two_where_a_pass_over_four_is_cheaper() -> None:
    drafted = set()
    for chance in np.linspace(0.3, 0.95, 60).tolist():
        drafted.add(looked_up(profile_of(TILES, None), [expects(1, chance)] * 2))
    assert drafted == {None, 3}


def test_dip_beyond_a_rise_is_found() -> None:
    """A pass over 12 is a bargain where one over 2 to 11 is none."""
    profile = profile_of([1.0, *(6.0,) * 10, 1.3], None)
    assert looked_up(profile, SURE, most=11) == 11


def test_high_step_is_climbed_where_a_long_copy_pays_for_it() -> None:
    """Two and three tokens are a loss, eleven a bargain."""
    profile = profile_of([1.0, *(3.5,) * 11], None)
    assert looked_up(profile, SURE, most=11) == 11


@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("spare", [1, 2, 30])
def test_no_plan_goes_beyond_the_room(most: int, count: int, spare: int) -> None:
    for shape in ("flat", "tiles"):
        profile, lookup = profile_of(SHAPES[shape], None), ListedSource(SURE)
        planner = planner_of(profile, lookup, model=False, most=most, capacity=10 + spare)
        at = session(10, count)
        plan = planner.plan(at)
        if plan.drafter is not None:
            assert 1 <= plan.depth <= min(most, count - 1, spare)
            assert kept(profile, plan, lookup, at) <= plan.depth


def test_sampled_answers_get_chains_and_greedy_ones_trees() -> None:
    profile = profile_of(SHAPES["flat"])
    for greedy, drawn, wanted in (
        (True, True, (8, False)),
        (False, True, (1, True)),
        (False, False, (1, False)),
    ):
        plan = planner_of(profile, greedy=greedy, drawn=drawn).plan(session())
        assert isinstance(plan, AdaptivePlan)
        assert (plan.leaves, plan.drawn) == wanted


def test_rate_is_learned_and_raises_what_a_draft_has_to_bring() -> None:
    """Tokens per second to be had: a draft has to bring more of them than other steps do."""
    profile = profile_of(SHAPES["steep"], None)
    planner = planner_of(profile, SURE, model=False)

    def gain() -> float:
        """Of a further token that is accepted every second time."""
        plan = planner.plan(session())
        assert isinstance(plan, AdaptivePlan)
        value = DraftValue(plan)
        return value.of([0.5]) - value.of([])

    slow = gain()
    for _ in range(300):
        told = step_of(planner.plan(session()), seconds=(UNIT, UNIT, 0.0))
        told.tokens.extend([1, 1, 1])
        planner.observe(told)
    costs = planner._verification_costs(10)
    assert planner._rate(costs) == pytest.approx(4.0 / UNIT, rel=0.1)
    if isinstance(planner.plan(session()), AdaptivePlan):
        assert gain() <= slow
    for _ in range(300):
        planner.observe(step_of(Plan(None), seconds=(2 * UNIT, 2 * UNIT, 0.0)))
    costs = planner._verification_costs(10)
    assert planner._rate(costs) == pytest.approx(1.0 / costs.least[1]), "never below plain decoding"


def test_nothing_is_planned_where_no_draft_could_pay() -> None:
    """Passes of half a millisecond, and one over eight tokens costs eight of them."""
    profile, lookup = profile_of(SHAPES["ruinous"], None), ListedSource(SURE)
    profile.target.learn({n: 5e-4 * n for n in range(1, 9)}, 0)
    planner = planner_of(profile, lookup, model=False)
    plan = planner.plan(session())
    assert plan is HOPELESS
    assert lookup.asked == 0, "what is known does not matter here"
    planner.observe(step_of(plan))


def test_lookup_is_checked_for_nothing_while_it_does_not_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(AdaptivePlanner, "WORTHWHILE", 0.0)
    profile, lookup = profile_of(SHAPES["ruinous"], None), ListedSource(SURE)
    planner = planner_of(profile, lookup, model=False)
    assert planner.plan(session()).drafter is None
    step = step_of(Plan(None))
    step.tokens[:] = [1]
    planner.observe(step)
    assert profile.source(lookup).estimators["any"].seen == 1


def test_new_answer_drops_what_was_particular_to_the_last() -> None:
    profile = profile_of(SHAPES["flat"])
    planner_of(profile, SURE).plan(session())
    estimators = [e for s in profile._sources.values() for e in s.estimators.values()]
    assert len(estimators) > 4
    for estimator in estimators:
        estimator.bias = 1.0
    planner_of(profile)
    assert {estimator.bias for estimator in estimators} == {0.0}


def test_short_passes_are_not_held_up_by_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pass takes half a millisecond, the planner naps in between, and says so."""
    monkeypatch.setattr(AdaptivePlanner, "WORTHWHILE", 0.0)
    profile, lookup = profile_of(SHAPES["ruinous"], None), ListedSource(())
    profile.target.learn({n: 5e-4 * n for n in range(1, 9)}, 0)
    planner = planner_of(profile, lookup, model=False)
    for _ in range(400):
        plan = planner.plan(session())
        assert plan.drafter is None
        assert plan.reason
        planner.observe(step_of(plan, seconds=(5e-4, 5e-4, 0.0)))
    assert lookup.asked < 80, "of 400 steps"
    assert lookup.asked > 400 // (Naps.LONGEST + 1), "no nap is longer"


def test_how_sure_the_target_was_is_asked_for_model_sources_alone() -> None:
    """To see it takes longer than all other work of a plain step."""
    assert planner_of(profile_of(SHAPES["flat"])).watches
    assert not planner_of(profile_of(SHAPES["flat"], None), model=False).watches


def test_plain_passes_are_learned_from_while_nothing_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the planner naps although passes are not short, the account has to know their cost."""
    monkeypatch.setattr(AdaptivePlanner, "WORTHWHILE", 0.0)
    profile, lookup = profile_of(SHAPES["ruinous"], None), ListedSource(POOR)
    profile.step_overhead = 1e-3
    profile.target = CostCurve()
    profile.target.learn({n: n * UNIT for n in range(1, 9)}, 0)
    planner = planner_of(profile, lookup, model=False)
    plans = []
    for _ in range(60):
        plans.append(planner.plan(session()))
        planner.observe(step_of(plans[-1], seconds=(2 * UNIT + 2e-5, 2 * UNIT, 0.0)))
    assert ASLEEP in plans
    assert profile.target.plain(0) == pytest.approx(2 * UNIT, rel=0.1)
    assert profile.plain_overhead < 3e-5, "of 20 µs, at first taken for 40"
    seen = profile.source(lookup).estimators["any"].seen
    assert seen == plans.count(UNLIKELY), "it expected nothing in between"


def scripted(
    known: int, strange: int, back: int, *, wrongly_sure: bool = False, wide: int = 64
) -> list[Step]:
    """The text 0 1 2 3 …, which the draft model knows, then does not, then knows again.

    No token comes twice, so that the n-gram is of no use.

    Args:
        wrongly_sure: whether the draft model is as sure of itself where it is wrong.
        wide: tokens that the draft model reads in the time of one; more take in proportion.
    """
    size = known + strange + back + 8
    doubts = 0.7 if wrongly_sure else 0.1
    says = {token: (token + 1, 0.7) for token in range(size - 1)}
    predictions = says | dict.fromkeys(range(known, known + strange), (0, doubts))
    cache = ToyCache(Follows(predictions, size), capacity=4 * size)
    profile = profile_of(SHAPES["steep"], [0.2] * wide)
    lookups = [NgramSource(NgramIndex())]
    models = [DraftModelSource(DraftModel(cache, size))]
    planner = AdaptivePlanner(
        profile, lookups, models, Limits(4 * size, 8, 8), greedy=True, trees=True, drawn=True
    )
    builder = DraftTreeBuilder(lookups, models, profile)
    text = session_of([0], size=size, params=GREEDY, count=known + strange + back)
    builder.begin(text.context)
    target = ToyTarget(Follows(says, size), capacity=4 * size, max_leaves=8)
    told = Clockless(planner, profile)
    steps = list(drive(text, speculate(text, builder, told, GreedyMatch()), target))
    assert text.context == list(range(len(text.context)))
    return steps


def asked(step: Step) -> bool:
    """Whether the draft model was asked for a draft."""
    return isinstance(step.draft, PlannedDraft) and len(step.draft.sizes) > 0


@pytest.mark.parametrize("strange", [60, 200, 400])
def test_draft_model_is_given_up_and_found_again(strange: int) -> None:
    """A text it knows, one it does not, and one it knows again.

    It is given up within 20 tokens. It is found again once the next review is due, which is within
    LONGEST_INTERVAL tokens, and 20 more.
    """
    known, back = 150, 300
    steps = scripted(known, strange, back)

    def between(start: int, end: int) -> list[Step]:
        return [step for step in steps if start <= step.context_length < end]

    before = between(20, known)
    assert sum(asked(step) for step in before) > 0.9 * len(before)
    lost = [step.context_length for step in between(known, known + strange) if not asked(step)]
    assert lost, "it is never given up"
    assert lost[0] - known <= 20
    late = between(known + 40, known + strange)
    assert sum(asked(step) for step in late) <= 0.1 * len(late)
    change = known + strange
    again = [step.context_length for step in between(change, change + back) if asked(step)]
    assert again, "it is never asked again"
    assert again[0] - change <= ModelState.LONGEST_INTERVAL + 20
    settled = between(again[0] + 40, change + back)
    assert sum(asked(step) for step in settled) > 0.8 * len(settled)


@pytest.mark.parametrize("strange", [60, 200, 400])
def test_once_a_review_is_due_the_change_is_followed_within_twenty_tokens(strange: int) -> None:
    """The first review that sees nothing but the new text is enough."""
    change = 150 + strange
    steps = scripted(150, strange, 300)
    reviews = [step.context_length for step in steps if step.plan.reason == REVIEWING]
    due = next(at for at in reviews if at >= change + 8)
    again = next(s.context_length for s in steps if asked(s) and s.context_length >= change)
    assert again - due <= 20


def test_draft_model_that_was_wrongly_sure_of_itself_is_believed_again() -> None:
    """Its confidence says nothing any more; five intervals teach that it does."""
    change = 150 + 60
    steps = scripted(150, 60, 500, wrongly_sure=True)
    lost = next(s.context_length for s in steps if s.context_length >= 150 and not asked(s))
    assert lost - 150 <= 20
    again = next(s.context_length for s in steps if asked(s) and s.context_length >= change)
    assert again - change <= 5 * ModelState.LONGEST_INTERVAL


def test_long_absence_does_not_keep_the_draft_model_out_for_good() -> None:
    """What it missed costs five passes of the target to read; 600 tokens are left to earn that."""
    change = 150 + 400
    steps = scripted(150, 400, 600, wide=16)
    again = [s.context_length for s in steps if asked(s) and s.context_length >= change]
    assert again, "it is never asked again"
    assert again[0] - change <= 2 * ModelState.LONGEST_INTERVAL + 20


def test_reviews_are_rare_and_cheap() -> None:
    """One pass each; further apart while nothing comes of them."""
    agrees, differs = 100, 600
    steps = scripted(agrees, differs, 1)
    reviews = [
        step.context_length
        for step in steps
        if step.plan.reason == REVIEWING and step.context_length > agrees + 100
    ]
    apart = [b - a for a, b in pairwise(reviews)]
    assert apart
    assert min(apart) >= ModelState.FIRST_INTERVAL
    assert max(apart) <= ModelState.LONGEST_INTERVAL + 8
    assert apart[-1] >= ModelState.LONGEST_INTERVAL
    assert not any(asked(step) for step in steps if step.plan.reason == REVIEWING)


def test_every_step_without_a_draft_says_why() -> None:
    for step in scripted(80, 200, 80):
        assert step.plan.reason, step
        if step.drafted:
            assert step.plan.drafter == AUTO
