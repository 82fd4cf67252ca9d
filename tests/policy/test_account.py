"""What drafting may risk: the account, and that nothing is drafted beyond it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Limits
from localspec.decoding.stats import AccountStatement
from localspec.decoding.tree import ROOT
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.policy.budget import Account
from localspec.policy.adaptive import AdaptivePlanner
from localspec.policy.draft_tree import DraftTreeBuilder
from localspec.policy.worth import DraftValue
from localspec.policy.profile import LOOKUP_KINDS, PairProfile
from localspec.policy.plan import AUTO, AdaptivePlan, Candidate, PlannedDraft
from localspec.policy.reasons import UNCOVERED
from tests.policy.adversaries import WORDS, natural
from tests.policy.lookups import ListedSource, expects
from tests.policy.measuring import MODEL, UNIT, profile_of
from tests.support.toys import (
    AS_IS,
    GREEDY,
    BranchingToyCache,
    Follows,
    ToyCache,
    examples,
    session_of,
)

PLAIN = 0.02
MOST = 0.5


def settled(account: Account, *steps: tuple[int, float]) -> AccountStatement:
    """After steps of so many tokens that lost so many seconds."""
    statement = AccountStatement()
    for tokens, lost in steps:
        account.settle(PLAIN, tokens, lost, tokens * PLAIN + lost, statement)
        account.prove(PLAIN, PLAIN, statement)
    return statement


def test_new_pair_begins_with_the_most_there_can_be() -> None:
    assert Account().open(PLAIN) == Account.SECONDS
    assert Account().open(0.2) == pytest.approx(Account.PASSES * 0.2)


def test_gift_is_given_once() -> None:
    account = Account()
    assert account.open(PLAIN) == MOST
    settled(account, (1, 0.3), (1, 0.3))
    spent = account.fund
    assert spent is not None
    assert spent < 0.0
    assert account.open(PLAIN) == spent
    assert account.open(0.3) == spent, "that passes take longer now covers nothing either"
    again = Account.from_dict(json.loads(json.dumps(account.as_dict())))
    assert again.open(PLAIN) == spent, "another session"


def test_fund_is_capped_by_what_passes_take_now() -> None:
    account = Account()
    settled(account, (10, -9.0))
    assert account.fund == MOST, "what was earned yesterday is no licence"
    slow = Account()
    assert slow.open(1.0) == Account.PASSES
    assert slow.open(PLAIN) == MOST, "the machine is faster again"


def test_each_token_brings_a_hundredth_of_its_plain_time() -> None:
    account = Account()
    settled(account, (1, 0.4))
    before = account.open(PLAIN)
    settled(account, *[(1, 0.0)] * 50)
    assert account.open(PLAIN) == pytest.approx(before + 0.01 * 50 * PLAIN)


def test_loss_is_charged_and_gain_credited() -> None:
    account = Account()
    statement = settled(account, (1, 0.2), (3, -0.05), (1, 0.1))
    brought = 5 * 0.01 * PLAIN
    assert account.fund == pytest.approx(MOST - 0.25 + brought)
    assert statement.fund == account.fund
    assert statement.saved == account.saved == pytest.approx(-0.25)
    assert statement.risked == pytest.approx(0.3)
    assert account.seconds == pytest.approx(5 * PLAIN + 0.25)


def test_step_stakes_half_of_the_fund_or_a_few_passes() -> None:
    """Who stakes all on one draft is soon out, with drafts that pay as well."""
    account = Account()
    assert account.stake(PLAIN) == pytest.approx(MOST / 2)
    account.fund = 4 * PLAIN
    assert account.stake(PLAIN) == pytest.approx(3 * PLAIN)
    account.fund = PLAIN
    assert account.stake(PLAIN) == pytest.approx(PLAIN)
    account.fund = -PLAIN
    assert account.stake(PLAIN) <= 0.0


def test_plain_pass_is_due_before_too_much_may_be_lost() -> None:
    """Steps that broke even would have lost two thirds of their time, had plain passes become three
    times cheaper: 24 passes after 36; the faster the drafts, the later."""

    def steps(tokens: int) -> int:
        account, statement = Account(), AccountStatement()
        for number in range(1, 1000):
            account.settle(PLAIN, tokens, 0.0, 2 * PLAIN, statement)
            if account.exposed(PLAIN):
                return number
        return 1000

    assert steps(2) * 2 == pytest.approx(24 / (1 - 1 / 3), abs=2)
    assert steps(3) > 1.2 * steps(2)


def test_plain_pass_is_due_where_most_of_the_fund_is_unproven() -> None:
    account, statement = Account(), AccountStatement()
    account.fund = 2 * PLAIN
    account.settle(PLAIN, 2, -PLAIN, PLAIN, statement)
    assert not account.exposed(PLAIN)
    account.settle(PLAIN, 3, -2 * PLAIN, PLAIN, statement)
    assert account.exposed(PLAIN)
    account.prove(PLAIN, PLAIN, statement)
    assert not account.exposed(PLAIN)
    assert account.open(PLAIN) > 5 * PLAIN


def test_gains_that_wait_and_the_fund_hold_no_more_than_the_most_together() -> None:
    account, statement = Account(), AccountStatement()
    settled(account, (1, 0.02))
    account.settle(PLAIN, 10, -0.5, PLAIN, statement)
    for _ in range(60):
        account.settle(PLAIN, 10, 0.0, 10 * PLAIN, statement)
        assert account.open(PLAIN) + account._credit <= MOST + 1e-9


def test_sleep_of_the_machine_does_not_end_drafting_for_as_long() -> None:
    account = Account()
    settled(account, (1, 3600.0))
    assert account.fund == -Account.DEBT * MOST
    assert account.saved == -3600.0, "it is told all the same"
    steps = 0
    while account.open(PLAIN) < 0.0:
        settled(account, (1, 0.0))
        steps += 1
    assert steps * PLAIN < 60.0


@given(
    st.lists(
        st.tuples(st.integers(1, 16), st.floats(-0.5, 0.24)),
        min_size=1,
        max_size=60,
    ),
    st.floats(0.001, 0.3),
)
@examples(200)
def test_no_stretch_loses_more_than_it_may(steps: list[tuple[int, float]], plain: float) -> None:
    """Where a step is only taken if the fund covers it."""
    account, losses = Account(), []
    most = max(Account.SECONDS, Account.PASSES * plain)
    for tokens, lost in steps:
        if lost > max(0.0, account.open(plain)):
            continue
        account.settle(plain, tokens, lost, 1.0, AccountStatement())
        losses.append(lost - 0.01 * tokens * plain)
        assert account.fund is not None
        assert account.fund <= most
    for first in range(len(losses)):
        assert sum(losses[first:]) <= most + 1e-9


def test_round_trip_through_json() -> None:
    account = Account()
    assert Account.from_dict(json.loads(json.dumps(account.as_dict()))).fund is None
    settled(account, (4, 0.1), (2, -0.03))
    again = Account.from_dict(json.loads(json.dumps(account.as_dict())))
    assert again.as_dict() == account.as_dict()


def record(**changed: Any) -> dict[str, Any]:
    return {"fund": 0.3, "saved": 1.0, "seconds": 9.0} | changed


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        3,
        {},
        record(fund="much"),
        record(fund=[]),
        record(fund=math.nan),
        record(fund=math.inf),
        record(saved=None),
        record(saved=-math.inf),
        record(seconds="long"),
        record(seconds=math.nan),
    ],
    ids=repr,
)
def test_broken_record_is_refused(broken: Any) -> None:
    with pytest.raises(ValueError):
        Account.from_dict(broken)
    profile, stored = PairProfile(), PairProfile().as_dict()
    profile.account.open(PLAIN)
    with pytest.raises(ValueError):
        profile.restore(stored | {"account": broken})
    assert profile.account.fund == MOST, "and changes nothing"


def test_sound_record_is_not_refused() -> None:
    assert Account.from_dict(record()).fund == 0.3
    assert Account.from_dict(record(fund=None)).fund is None


# The gates: nothing is drafted whose worst case is not covered.

shapes = st.lists(st.floats(0.2, 3.0), min_size=16, max_size=16).map(
    lambda more: [1.0, *np.cumsum(more[:-1]).round(3) + 1.0]
) | st.lists(st.floats(1.0, 8.0), min_size=16, max_size=16).map(lambda more: [1.0, *more[1:]])
"""T(n) ÷ T(1), rising or with dips anywhere."""
funds = st.floats(0.0, 30.0) | st.floats(0.0, 1.0) | st.just(0.0)
"""In plain passes."""
chances = st.lists(st.floats(0.01, 0.99), min_size=0, max_size=12)


def worst_case(profile: PairProfile, plan: AdaptivePlan, draft: PlannedDraft) -> float:
    """Seconds beyond a plain step if nothing of the draft is accepted."""
    assert plan.costs is not None
    costs = profile.source(MODEL).costs
    passes = sum(costs.seconds(size, 10) + profile.row_overhead for size in draft.sizes)
    size = 1 + len(draft.tree)
    return passes + plan.costs.least[size] - plan.costs.least[1]


@given(shapes, funds, chances, st.booleans(), st.booleans(), st.floats(0.02, 1.2))
@examples(300)
def test_no_draft_risks_more_than_the_fund_has(
    shape: Sequence[float],
    fund: float,
    listed: Sequence[float],
    greedy: bool,
    branching: bool,
    price: float,
) -> None:
    """Trees and chains, chosen and drawn, looked up, asked for and under review."""
    profile = profile_of(shape, [price * (1.0 + 0.3 * n) for n in range(16)])
    profile.account.fund = fund * UNIT
    model = Follows({token: (natural(token), 0.9) for token in range(WORDS)}, WORDS)
    kind = BranchingToyCache if branching else ToyCache
    cache = kind(model, capacity=400)
    source = DraftModelSource(DraftModel(cache, WORDS))
    profile.source(source).came_true = [3.0] * LOOKUP_KINDS
    profile.source(source).asked = [50] * LOOKUP_KINDS
    lookup = ListedSource([expects(5 + n, chance) for n, chance in enumerate(listed)])
    planner = AdaptivePlanner(
        profile, [lookup], [source], Limits(400, 15, 8), greedy=greedy, trees=True, drawn=True
    )
    builder = DraftTreeBuilder([lookup], [source], profile)
    session = session_of(list(range(10)), size=WORDS, params=GREEDY if greedy else AS_IS, count=200)
    builder.begin(session.context)
    stake = profile.account.stake(profile.target.plain(10))
    spare = profile.account.open(profile.target.plain(10))
    for _ in range(3):
        plan = planner.plan(session)
        if not isinstance(plan, AdaptivePlan):
            assert plan.drafter is None
            break
        assert stake - 1e-9 <= plan.spare <= spare + 1e-9
        native = source.native_seconds
        draft = builder.draft(session, plan)
        assert isinstance(draft, PlannedDraft)
        risked = worst_case(profile, plan, draft)
        if plan.reviews is not None:
            assert not draft.sizes
            costs = profile.source(source).costs
            risked += costs.seconds(8, 10) * (source.native_seconds > native)
        assert risked <= plan.spare + 1e-9
        session.extend([1], None)
        builder.committed(session.context, {})


@given(
    shapes,
    funds,
    st.lists(st.tuples(st.floats(0.0, 1.5), st.floats(0.01, 0.99)), min_size=1, max_size=12),
    st.floats(1.0, 4.0),
)
@examples(300)
def test_what_was_drawn_is_verified_and_was_covered(
    shape: Sequence[float], fund: float, drawn: Sequence[tuple[float, float]], rate: float
) -> None:
    """A draft model's passes spend the fund; nothing is drawn that could not be verified then, and
    whatever was is verified: dropping it for what it is would bias the text."""
    profile = profile_of(shape)
    costs = profile.verification_costs(10, 15)
    spare = fund * UNIT
    plan = AdaptivePlan(AUTO, 15, costs=costs, rate=rate / UNIT, drawn=True, spare=spare)
    candidates: list[Candidate] = []
    value, spent, parent = DraftValue(plan), 0.0, ROOT
    for price, chance in drawn:
        seconds = price * UNIT
        if not value.affords(seconds, len(candidates) + 1):
            break
        value.spend(seconds)
        spent += seconds
        assert value.affords(0.0, len(candidates) + 1)
        above = candidates[-1].reach if candidates else 1.0
        number = len(candidates)
        candidates.append(
            Candidate(
                number,
                parent,
                number + 1,
                "model",
                None,
                (),
                chance,
                above * chance,
                Distribution.certain(number),
                True,
            )
        )
        parent = number
    further = [
        Candidate(99, parent, len(candidates) + 1, "listed", None, (), 0.9, 0.9, None, False)
    ]
    kept, padding = value.select([*candidates, *further])
    assert kept[: len(candidates)] == list(range(len(candidates)))
    size = 1 + len(kept) + padding
    assert spent + costs.least[size] - costs.least[1] <= spare + 1e-9


@pytest.mark.parametrize("greedy", [True, False])
def test_step_that_is_held_back_says_so_and_is_counted(greedy: bool) -> None:
    profile = profile_of([1.0 + 0.3 * n for n in range(16)], (0.3,))
    profile.account.fund = 0.5 * UNIT
    cache = ToyCache(Follows({}, WORDS), capacity=400)
    source = DraftModelSource(DraftModel(cache, WORDS))
    profile.source(source).came_true, profile.source(source).asked = [5.0] * 4, [50] * 4
    planner = AdaptivePlanner(
        profile, [], [source], Limits(400, 15, 8), greedy=greedy, trees=True, drawn=True
    )
    session = session_of([1], size=WORDS, count=200)
    assert planner.plan(session) is UNCOVERED
    assert planner.statement.refused == 1
    profile.account.fund = 30 * UNIT
    assert planner.plan(session).drafter == AUTO
    assert planner.statement.refused == 1


def test_catching_up_may_take_more_than_half_of_the_fund_and_no_more_than_it_holds() -> None:
    """What it takes is known, so it is no bet; here 20 tokens at 0.3 of a plain pass each."""
    profile = profile_of([1.0 + 0.1 * n for n in range(16)], [0.3 * n for n in range(1, 33)])
    source = DraftModelSource(DraftModel(ToyCache(Follows({}, WORDS), capacity=400), WORDS))
    profile.source(source).came_true, profile.source(source).asked = [5.0] * 4, [50] * 4
    planner = AdaptivePlanner(
        profile, [], [source], Limits(400, 15, 8), greedy=True, trees=True, drawn=True
    )
    session = session_of([1] * 20, size=WORDS, count=200)
    profile.account.fund = 8 * UNIT
    plan = planner.plan(session)
    assert isinstance(plan, AdaptivePlan)
    assert plan.spare == pytest.approx(8 * UNIT)
    profile.account.fund = 6 * UNIT
    assert planner.plan(session) is UNCOVERED


def test_debt_of_a_busy_machine_shrinks_on_an_idle_one_and_not_by_noise() -> None:
    account = Account()
    assert account.open(0.2) == pytest.approx(Account.PASSES * 0.2)
    account.settle(0.2, 1, 2.0, 2.2, AccountStatement())
    owed = account.fund
    assert owed is not None
    assert owed < -0.3
    for plain in (0.19, 0.2, 0.15, 0.21, 0.14):
        assert account.open(plain) == owed, "noise"
    assert account.open(0.02) == pytest.approx(owed / 10)
    assert account.open(0.2) == pytest.approx(owed / 10), "and it does not come back"


def test_debt_is_forgiven_gains_are_not() -> None:
    account = Account()
    account.open(PLAIN)
    settled(account, (1, 0.3), (1, 0.3))
    account.forgive()
    assert account.fund == 0.0
    settled(account, (100, -0.2))
    kept = account.fund
    account.forgive()
    assert account.fund == kept > 0.0
