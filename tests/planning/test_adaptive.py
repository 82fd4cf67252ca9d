"""The measured planner: what it decides, from made-up costs and scripted texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pytest
from localspec.drafters.hybrid import Blend
from localspec.planning.prediction import Guess

from localspec.decoding.acceptance import GreedyMatch, Rows
from localspec.decoding.interfaces import Plan, Step
from localspec.decoding.loop import speculate
from localspec.decoding.session import Session
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex
from localspec.planning.adaptive import COPYING, HOPELESS, LEADING, NAME, PROBING, Measured
from localspec.planning.pair_profile import PairProfile
from tests.decoding.steps import step_of
from tests.planning.measuring import SHAPES, TILES, UNIT, Clockless, profile_of
from tests.support.toys import GREEDY, ToyCache, ToyModel, ToyTarget, session_of

SURE = [Guess(1, 24, 9, 9)] * 40
"""A long copy."""
POOR = [Guess(1, 1, 1, 40)] * 3
UNREAD = 1


def planner_of(
    knowledge: PairProfile,
    guesses: Sequence[Guess] = (),
    *,
    model: bool = True,
    most: int = 16,
    leaves: int = 8,
    capacity: int = 1000,
    greedy: bool = True,
    drawn: bool = True,
) -> Measured:
    return Measured(
        knowledge,
        lambda session: iter(guesses),
        (lambda session: UNREAD) if model else None,
        most=most,
        leaves=leaves,
        capacity=capacity,
        greedy=greedy,
        drawn=drawn,
    )


def session(length: int = 10, count: int = 100) -> Session:
    return session_of([0] * length, count=count)


def kept(plan: Plan) -> int:
    """Tokens that the n-gram's part of the plan verifies."""
    outlook = plan.outlook
    assert outlook is not None
    outlook.extend_with_guesses(-1, outlook.guesses, "ngram", outlook.streak)
    outlook.settle(0)
    return len(outlook.kept)


def test_without_a_curve_nothing_is_drafted() -> None:
    plan = planner_of(PairProfile(), SURE).plan(session())
    assert plan.drafter is None
    assert plan.reason == "the cost of a pass is not measured yet"


def test_last_token_is_not_drafted_for() -> None:
    planner = planner_of(profile_of(SHAPES["flat"]), SURE)
    plan = planner.plan(session(count=1))
    assert (plan.drafter, plan.reason) == (None, "the answer ends with the next token")
    assert planner.plan(session(count=2)).drafter == NAME
    full = planner_of(profile_of(SHAPES["flat"]), SURE, capacity=10)
    assert full.plan(session(10)).drafter is None


@pytest.mark.parametrize(
    ("guesses", "reason"), [((), "nothing repeats"), (POOR, "too unlikely to pay")]
)
def test_without_a_model_nothing_is_drafted_where_nothing_repeats(
    guesses: Sequence[Guess], reason: str
) -> None:
    plan = planner_of(profile_of(SHAPES["flat"], None), guesses, model=False).plan(session())
    assert plan.drafter is None
    assert reason in plan.reason


@pytest.mark.parametrize("price", [1.0, 3.0])
def test_draft_model_that_costs_what_it_could_bring_is_left_alone(price: float) -> None:
    plan = planner_of(profile_of(SHAPES["flat"], (price,))).plan(session())
    assert plan.drafter is None
    assert "not paid for itself" in plan.reason


def test_cheap_draft_model_is_asked() -> None:
    plan = planner_of(profile_of(SHAPES["flat"], (0.05,))).plan(session())
    assert (plan.drafter, plan.reason) == (NAME, LEADING)
    assert plan.outlook is not None
    assert plan.outlook.asks_model


def test_unmeasured_draft_model_is_not_asked() -> None:
    plan = planner_of(profile_of(SHAPES["flat"], None)).plan(session())
    assert plan.drafter is None


def test_sure_copy_is_long_where_the_curve_is_flat() -> None:
    plan = planner_of(profile_of(SHAPES["flat"], None), SURE, model=False).plan(session())
    assert (plan.drafter, plan.reason) == (NAME, COPYING)
    assert kept(plan) >= 7


def test_copy_is_short_or_none_where_every_token_costs_a_pass() -> None:
    planner = planner_of(profile_of(SHAPES["ruinous"], None), SURE, model=False)
    assert planner.plan(session()).drafter is None


def test_three_tokens_rather_than_two_where_a_pass_over_four_is_cheaper() -> None:
    drafted = set()
    for length in range(1, 25):
        for count in range(1, 8):
            guesses = [Guess(1, length, count, 8)] * 2
            knowledge = profile_of(TILES, None)
            plan = planner_of(knowledge, guesses, model=False).plan(session())
            if plan.drafter is not None:
                drafted.add(kept(plan))
    assert drafted == {3}


def test_dip_beyond_a_rise_is_found() -> None:
    """A pass over 12 is a bargain where one over 2 to 11 is none."""
    knowledge = profile_of([1.0, *(6.0,) * 10, 1.3], None)
    plan = planner_of(knowledge, SURE, model=False, most=11).plan(session())
    assert plan.drafter == NAME
    assert kept(plan) == 11


def test_high_step_is_climbed_where_a_long_copy_pays_for_it() -> None:
    """Two and three tokens are a loss, eleven a bargain."""
    knowledge = profile_of([1.0, *(3.5,) * 11], None)
    plan = planner_of(knowledge, SURE, model=False, most=11).plan(session())
    assert plan.drafter == NAME
    assert kept(plan) == 11


@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("count", [2, 3, 9])
@pytest.mark.parametrize("spare", [1, 2, 30])
def test_no_plan_goes_beyond_the_room(most: int, count: int, spare: int) -> None:
    for shape in ("flat", "tiles"):
        knowledge = profile_of(SHAPES[shape], None)
        planner = planner_of(knowledge, SURE, model=False, most=most, capacity=10 + spare)
        plan = planner.plan(session(10, count))
        if plan.drafter is not None:
            assert 1 <= plan.depth <= min(most, count - 1, spare)
            assert kept(plan) <= plan.depth


def test_sampled_answers_get_chains_and_greedy_ones_trees() -> None:
    knowledge = profile_of(SHAPES["flat"])
    for greedy, drawn, wanted in (
        (True, True, (8, False)),
        (False, True, (1, True)),
        (False, False, (1, False)),
    ):
        outlook = planner_of(knowledge, greedy=greedy, drawn=drawn).plan(session()).outlook
        assert outlook is not None
        assert (outlook.leaves, outlook.drawn) == wanted


def test_rate_is_learned_and_raises_what_a_draft_has_to_bring() -> None:
    """Tokens per second to be had: a draft has to bring more of them than other steps do."""
    knowledge = profile_of(SHAPES["steep"], None)
    planner = planner_of(knowledge, SURE, model=False)
    first = planner.plan(session()).outlook
    assert first is not None
    slow = first.value([0.5]) - first.value()
    for _ in range(300):
        plan = planner.plan(session())
        told = step_of(plan, seconds=(UNIT, UNIT, 0.0))
        told.tokens.extend([1, 1, 1])
        planner.observe(told)
    assert planner._rate(planner._prices(10)) == pytest.approx(4.0 / UNIT, rel=0.1)
    later = planner.plan(session()).outlook
    if later is not None:
        assert later.value([0.5]) - later.value() <= slow
    for _ in range(300):
        planner.observe(step_of(Plan(None), seconds=(2 * UNIT, 2 * UNIT, 0.0)))
    plain = 1.0 / planner._prices(10).least[1]
    assert planner._rate(planner._prices(10)) == pytest.approx(plain), "never below plain decoding"


def test_nothing_is_planned_where_no_draft_could_pay() -> None:
    """Passes of half a millisecond, and one over eight tokens costs eight of them."""
    knowledge = profile_of(SHAPES["ruinous"], None)
    knowledge.target.learn({n: 5e-4 * n for n in range(1, 9)}, 0)

    def guess(session: Session) -> Iterator[Guess]:
        raise AssertionError("what the n-gram knows does not matter here")

    planner = Measured(
        knowledge, guess, None, most=16, leaves=8, capacity=1000, greedy=True, drawn=True
    )
    plan = planner.plan(session())
    assert plan is HOPELESS
    planner.observe(step_of(plan))


def test_ngram_is_checked_for_nothing_while_it_does_not_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Measured, "WORTHWHILE", 0.0)
    knowledge = profile_of(SHAPES["ruinous"], None)
    planner = planner_of(knowledge, SURE, model=False)
    before = knowledge.chances["ngram"].seen
    assert planner.plan(session()).drafter is None
    step = step_of(Plan(None))
    step.tokens[:] = [1]
    planner.observe(step)
    assert knowledge.chances["ngram"].seen == before + 1


def test_new_answer_drops_what_was_particular_to_the_last() -> None:
    knowledge = profile_of(SHAPES["flat"])
    for chance in knowledge.chances.values():
        chance.bias = 1.0
    planner_of(knowledge)
    assert {chance.bias for chance in knowledge.chances.values()} == {0.0}


def test_short_passes_are_not_held_up_by_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pass takes half a millisecond, the planner naps in between, and says so."""
    monkeypatch.setattr(Measured, "WORTHWHILE", 0.0)
    knowledge = profile_of(SHAPES["ruinous"], None)
    knowledge.target.learn({n: 5e-4 * n for n in range(1, 9)}, 0)
    asked = 0

    def guess(session: Session) -> Iterator[Guess]:
        nonlocal asked
        asked += 1
        return iter(())

    planner = Measured(
        knowledge, guess, None, most=16, leaves=8, capacity=1000, greedy=True, drawn=True
    )
    for _ in range(400):
        plan = planner.plan(session())
        assert plan.drafter is None
        assert plan.reason
        planner.observe(step_of(plan, seconds=(5e-4, 5e-4, 0.0)))
    assert asked < 80, "of 400 steps"
    assert asked > 400 // (Measured.NAP + 1), "no nap is longer"


class Follows(ToyModel):
    """Says one token after each, with some probability, and any other one in its place."""

    def __init__(self, follows: Mapping[int, tuple[int, float]], size: int) -> None:
        self.size = size
        table = np.full((size, size), 1.0 / size)
        for token, (follower, p) in follows.items():
            table[token] = (1.0 - p) / size
            table[token, follower] += p
        self._table: Rows = np.log(table).astype(np.float32)

    def logits(self, contexts: Sequence[Sequence[int]]) -> Rows:
        rows: Rows = self._table[[context[-1] for context in contexts]]
        return rows


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
    guesses = says | dict.fromkeys(range(known, known + strange), (0, doubts))
    cache = ToyCache(Follows(guesses, size), capacity=4 * size)
    knowledge = profile_of(SHAPES["steep"], [0.2] * wide)
    index, model = NgramIndex(), DraftModel(cache, size)
    measured = Measured(
        knowledge,
        index.expected,
        model.unread,
        most=8,
        leaves=8,
        capacity=4 * size,
        greedy=True,
        drawn=True,
    )
    blend = Blend(model, index, knowledge)
    text = session_of([0], size=size, params=GREEDY, count=known + strange + back)
    blend.begin(text.context)
    target = ToyTarget(Follows(says, size), capacity=4 * size, max_leaves=8)
    planner = Clockless(measured, knowledge)
    steps = list(speculate(text, target, {NAME: blend}, planner, GreedyMatch()))
    assert text.context == list(range(len(text.context)))
    return steps


def asked(step: Step) -> bool:
    """Whether the draft model was asked for a draft."""
    return step.plan.outlook is not None and len(step.plan.outlook.sizes) > 0


@pytest.mark.parametrize("strange", [60, 200, 400])
def test_draft_model_is_given_up_and_found_again(strange: int) -> None:
    """A text it knows, one it does not, and one it knows again.

    It is given up within 20 tokens. It is found again once the next probe is due, which is within
    LONGEST_REST tokens, and 20 more.
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
    assert again[0] - change <= Measured.LONGEST_REST + 20
    settled = between(again[0] + 40, change + back)
    assert sum(asked(step) for step in settled) > 0.8 * len(settled)


@pytest.mark.parametrize("strange", [60, 200, 400])
def test_once_probing_is_due_the_change_is_followed_within_twenty_tokens(strange: int) -> None:
    """The first probe that sees nothing but the new text is enough."""
    change = 150 + strange
    steps = scripted(150, strange, 300)
    probes = [step.context_length for step in steps if step.plan.reason == PROBING]
    due = next(at for at in probes if at >= change + 8)
    again = next(s.context_length for s in steps if asked(s) and s.context_length >= change)
    assert again - due <= 20


def test_draft_model_that_was_wrongly_sure_of_itself_is_believed_again() -> None:
    """Its confidence says nothing any more; five rests teach that it does."""
    change = 150 + 60
    steps = scripted(150, 60, 500, wrongly_sure=True)
    lost = next(s.context_length for s in steps if s.context_length >= 150 and not asked(s))
    assert lost - 150 <= 20
    again = next(s.context_length for s in steps if asked(s) and s.context_length >= change)
    assert again - change <= 5 * Measured.LONGEST_REST


def test_long_absence_does_not_keep_the_draft_model_out_for_good() -> None:
    """What it missed costs five passes of the target to read; 600 tokens are left to earn that."""
    change = 150 + 400
    steps = scripted(150, 400, 600, wide=16)
    again = [s.context_length for s in steps if asked(s) and s.context_length >= change]
    assert again, "it is never asked again"
    assert again[0] - change <= 2 * Measured.LONGEST_REST + 20


def test_probes_are_rare_and_cheap() -> None:
    """One pass each; further apart while nothing comes of them."""
    agrees, differs = 100, 600
    steps = scripted(agrees, differs, 1)
    probes = [
        step.context_length
        for step in steps
        if step.plan.reason == PROBING and step.context_length > agrees + 100
    ]
    apart = [b - a for a, b in pairwise(probes)]
    assert apart
    assert min(apart) >= Measured.FIRST_REST
    assert max(apart) <= Measured.LONGEST_REST + 8
    assert apart[-1] >= Measured.LONGEST_REST
    assert not any(asked(step) for step in steps if step.plan.reason == PROBING)


def test_every_step_without_a_draft_says_why() -> None:
    for step in scripted(80, 200, 80):
        assert step.plan.reason, step
        if step.drafted:
            assert step.plan.drafter == NAME
