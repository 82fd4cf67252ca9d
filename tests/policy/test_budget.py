"""The budget: the fund, and drafts within it."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.interfaces import Limits
from localspec.drafters.draft_model import DraftModel
from localspec.policy.budget import Budget
from localspec.policy.draft_builder import DraftBuilder
from localspec.policy.policy import AUTO, Policy
from localspec.policy.profile import PairProfile
from localspec.policy.reasons import UNCOVERED
from localspec.policy.source_profile import Gain
from tests.policy.adversaries import WORDS, predicted
from tests.policy.measuring import MODEL, UNIT, Clock, ListedSource, TimedCache, expects, profile_of
from tests.support.toys import AS_IS, GREEDY, SuccessorModel, ToyCache, examples, session_of

PLAIN = 0.02
MOST = 0.5


def settle_steps(budget: Budget, *steps: tuple[int, float]) -> None:
    """Settle steps of (tokens, lost seconds)."""
    for tokens, lost in steps:
        budget.settle(PLAIN, tokens, lost, tokens * PLAIN + lost, drafted=True)
        budget.confirm(PLAIN, PLAIN)


def test_fund_is_capped_by_current_pass_times() -> None:
    budget = Budget()
    settle_steps(budget, (10, -9.0))
    assert budget.fund == MOST, "earlier gains do not raise the cap"
    slow = Budget()
    assert slow.open(1.0) == Budget.PASSES
    assert slow.open(PLAIN) == MOST, "the machine is faster again"


def test_unconfirmed_gains_are_stored() -> None:
    profile, again = PairProfile(), PairProfile()
    settle_steps(profile.budget, (1, 0.2))
    profile.budget.settle(PLAIN, 3, -0.05, 0.01, drafted=True)
    kept, fund = profile.as_dict(), profile.budget.fund
    assert fund is not None
    again.restore(kept)
    assert again.as_dict() == kept
    assert again.budget.fund == pytest.approx(fund + 0.05)


def test_loss_is_charged_and_gain_credited() -> None:
    budget = Budget()
    settle_steps(budget, (1, 0.2), (3, -0.05), (1, 0.1))
    brought = 5 * 0.01 * PLAIN
    assert budget.fund == pytest.approx(MOST - 0.25 + brought)
    assert budget.saved == pytest.approx(-0.25)
    assert budget.seconds == pytest.approx(5 * PLAIN + 0.25)


def test_plain_pass_is_due_where_most_of_the_fund_is_unconfirmed() -> None:
    budget = Budget()
    budget.fund = 2 * PLAIN
    budget.settle(PLAIN, 2, -PLAIN, PLAIN, drafted=True)
    assert not budget.exposed(PLAIN)
    budget.settle(PLAIN, 3, -2 * PLAIN, PLAIN, drafted=True)
    assert budget.exposed(PLAIN)
    budget.confirm(PLAIN, PLAIN)
    assert not budget.exposed(PLAIN)
    assert budget.open(PLAIN) > 5 * PLAIN


def test_debt_is_limited_after_a_suspend() -> None:
    budget = Budget()
    settle_steps(budget, (1, 3600.0))
    assert budget.fund == -Budget.DEBT * MOST
    assert budget.saved == -3600.0, "the statistics include it"
    steps = 0
    while budget.open(PLAIN) < 0.0:
        settle_steps(budget, (1, 0.0))
        steps += 1
    assert steps * PLAIN < 60.0


# Gates: no draft whose worst case is not covered.

shapes = st.lists(st.floats(0.2, 3.0), min_size=16, max_size=16).map(
    lambda more: [1.0, *np.cumsum(more[:-1]).round(3) + 1.0]
) | st.lists(st.floats(1.0, 8.0), min_size=16, max_size=16).map(lambda more: [1.0, *more[1:]])
"""T(n) ÷ T(1), rising or with dips anywhere."""
funds = st.floats(0.0, 30.0) | st.floats(0.0, 1.0) | st.just(0.0)  # in plain passes
chances = st.lists(st.floats(0.01, 0.99), min_size=0, max_size=12)


class WatchedDraft(DraftModel):
    builder: DraftBuilder | None = None

    def start(self, draft: Any) -> None:
        self.builder = draft
        super().start(draft)


TRUSTED = partial(Gain, 5.0, 12.0)  # of a source whose drafts saved much


@given(shapes, funds, chances, st.booleans(), st.floats(0.02, 1.2))
@examples(300)
def test_no_draft_risks_more_than_the_fund_has(
    shape: Sequence[float], fund: float, listed: Sequence[float], greedy: bool, price: float
) -> None:
    """Trees and chains, chosen and drawn, of lookups and the draft model. Drawn tokens are always
    verified, and their cost is covered: dropping them would bias the text."""
    profile, clock = profile_of(shape, [price * (1.0 + 0.3 * n) for n in range(16)]), Clock()
    profile.budget.fund = fund * UNIT
    costs, target = profile.source(MODEL).costs, profile.target
    model = SuccessorModel({token: (predicted(token), 0.9) for token in range(WORDS)}, WORDS)
    cache = TimedCache(model, clock, lambda n: costs.seconds(n, 10))
    source = WatchedDraft(cache, WORDS)
    profile.source(source).gain = TRUSTED()
    lookup = ListedSource([expects(5 + n, chance) for n, chance in enumerate(listed)])
    policy = Policy(
        profile, [lookup], [source], Limits(400, 15, 8), branches=greedy, drawn=not greedy
    )
    session = session_of(list(range(10)), size=WORDS, params=GREEDY if greedy else AS_IS, count=200)
    policy.begin(session.context)
    fund = profile.budget.open(UNIT)
    for _ in range(3):
        plan, before = policy.plan(session), clock.now
        if plan.drafter is None:
            break
        unread = len(session.context) - len(cache.tokens)
        missed = max(0.0, costs.seconds(unread, 10) - costs.seconds(1, 10))
        tree = policy.draft(session, plan).tree
        size = 1 + len(tree)
        risked = clock.now - before + target.seconds(size, 10) - target.seconds(1, 10)
        assert risked <= min(fund, Policy.OPENING * UNIT + missed) + 1e-9
        if source.builder is not None:
            drawn = [c.token for c in source.builder.candidates if c.proposal is not None]
            assert not (drawn and greedy)
            assert tree.tokens[: len(drawn)] == drawn
        session.extend([1], None)
        policy.committed(session.context, {})


def test_reading_missed_text_may_take_the_whole_fund() -> None:
    """Its cost is known, so only the fund limits it: 20 tokens at 0.3 plain passes each."""
    profile = profile_of([1.0 + 0.1 * n for n in range(16)], [0.3 * n for n in range(1, 33)])
    session = session_of([1] * 20, size=WORDS, count=200)
    source = DraftModel(ToyCache(SuccessorModel({}, WORDS), capacity=400), WORDS)
    profile.source(source).gain = TRUSTED()
    policy = Policy(profile, [], [source], Limits(400, 15, 8), branches=True, drawn=False)
    profile.budget.fund = 8 * UNIT
    assert policy.plan(session).drafter == AUTO
    profile.budget.fund = 6 * UNIT
    assert policy.plan(session).reason == UNCOVERED
