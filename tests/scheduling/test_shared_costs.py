"""Costs of shared passes for one of several answers, and the sizes of its drafts."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.llama.batch import PassPart
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.worth import Bid, Worth
from localspec.scheduling.shared_costs import SharedCosts, SharedCurve, share_out
from localspec.scheduling.shared_scheduler import SharedScheduler
from localspec.scheduling.task import Task, Wait
from tests.scheduling.test_scheduler import RecordingCache

TILES = {1: 1.0, 2: 1.54, 3: 2.17, 4: 1.52, 8: 2.82, 16: 4.28, 32: 8.0, 64: 15.0}
"""T(n) in passes over one token of a 1 B model in Q4_0 on a CPU, see FACTS: tiles of four."""


class Fixture:
    """Answers that share passes of known cost."""

    def __init__(self, answers: int, costs: dict[int, float] = TILES) -> None:
        self.profile = PairProfile()
        self.costs = SharedCosts(self.profile)
        self.profile.target.learn({n: 0.025 * cost for n, cost in costs.items()}, 0)
        caches: dict[Wait, Any] = {Wait.TARGET: RecordingCache(answers)}
        self.scheduler = SharedScheduler(caches)
        self.tasks = self.scheduler.tasks
        for _ in range(answers):
            self.tasks.append(Task((), lambda task: None))
            self.tasks[-1].reading = False

    def view(self, number: int = 0) -> SharedCurve:
        others, bid = self.scheduler.others, self.scheduler.bid
        found = SharedCurve(self.costs, self.tasks[number], others, bid)
        found.refresh()
        return found

    def seconds(self, n: int) -> float:
        return self.profile.target.seconds(n, 0)


def requested(task: Task, tokens: int) -> Task:
    """The task, waiting for a pass over this many tokens."""
    task.request(Wait.TARGET, part=PassPart([0] * tokens, range(tokens), ((0,),), tokens))
    return task


def drafted(table: Fixture, chance: float) -> int:
    """The number of tokens of a chain worth verifying, each right with this chance."""
    seconds = table.profile.verifying(0, 16, table.view())
    worth = Worth(seconds, 1.0 / seconds[1], 1e9)
    return worth.count([chance**n for n in range(1, 17)])


def test_more_answers_draft_less() -> None:
    """Down to none if each row costs as much as it gains."""
    costs = {n: 1.0 + 0.2 * n for n in (1, 2, 4, 8, 16, 32, 64)}
    lengths = [drafted(Fixture(answers, costs), 0.7) for answers in (1, 2, 4, 8, 16)]
    assert lengths[0] >= 3
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0


def test_shares_add_up_and_drafts_pay_for_themselves() -> None:
    table = Fixture(3)
    tasks = [requested(task, n) for task, n in zip(table.tasks, (1, 1, 6), strict=True)]
    plain, same, more = table.costs.weigh(Wait.TARGET, tasks)
    assert plain == same < more
    assert plain + same + more == pytest.approx(table.seconds(8))


def test_plain_pass_after_many_drafted_ones() -> None:
    table = Fixture(2)
    for _ in range(CostCurve.OVERDUE):
        assert not table.view().doubtful(0)
        tasks = [requested(task, 2) for task in table.tasks]
        table.costs.passed(Wait.TARGET, tasks, table.seconds(4))
    assert table.view(0).doubtful(0)
    assert table.view(1).doubtful(0)
    plain = [requested(task, 1) for task in table.tasks]
    table.costs.passed(Wait.TARGET, plain, table.seconds(2))
    assert not table.view().doubtful(0)


def test_curve_learns_from_a_single_answer_beside_prompts() -> None:
    """Its planner does not, and would always wait for a plain pass."""
    for alone in (False, True):
        table = Fixture(2)
        table.tasks[0].alone = alone
        before = table.profile.target.plain(0)
        for _ in range(20):
            table.costs.passed(Wait.TARGET, [requested(table.tasks[0], 1)], 3.0 * before)
        # From a single answer its planner learns.
        assert (table.profile.target.plain(0) > 1.5 * before) == (not alone)


UNBOUND = 1e9
chances = st.floats(0.01, 1.0)


def worth(bids: list[Bid], counts: tuple[int, ...], further: list[float]) -> float:
    gained = sum(sum(bid.reaches[:count]) for bid, count in zip(bids, counts, strict=True))
    return gained - max(bid.rate for bid in bids) * further[sum(counts)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Bid], list[float]]:
    drafts = draw(st.lists(st.lists(chances, max_size=4), min_size=1, max_size=4))
    bids = [
        Bid(sorted(reaches, reverse=True), 0, draw(st.floats(0.5, 2.0)), UNBOUND)
        for reaches in drafts
    ]
    steps = draw(st.lists(st.floats(0.0, 2.0), min_size=16, max_size=16))
    return bids, [sum(steps[:n]) for n in range(17)]


@given(tables())
def test_share_out_is_optimal(table: tuple[list[Bid], list[float]]) -> None:
    bids, further = table
    counts, each = share_out(bids, further)
    best = max(
        worth(bids, choice, further)
        for choice in product(*(range(len(bid.reaches) + 1) for bid in bids))
    )
    assert worth(bids, tuple(counts), further) == pytest.approx(best)
    assert each * sum(counts) == pytest.approx(further[sum(counts)] if sum(counts) else 0.0)


@given(tables(), st.lists(st.floats(0.0, 3.0), min_size=4, max_size=4))
def test_stakes_are_limited(table: tuple[list[Bid], list[float]], spare: list[float]) -> None:
    bids = [bid._replace(spare=most) for bid, most in zip(table[0], spare, strict=False)]
    counts, each = share_out(bids, table[1])
    assert all(count * each <= bid.spare + 1e-9 for bid, count in zip(bids, counts, strict=True))


def test_drawn_tokens_are_always_verified() -> None:
    """At any cost; looked-up tokens after them only where they pay."""
    bids = [Bid([0.1, 0.1, 0.9], 2, 1.0, 0.0), Bid([0.2], 0, 1.0, UNBOUND)]
    assert share_out(bids, [0.0, 1.0, 2.0, 2.3, 4.0])[0] == [2, 0]
    free = [bids[0]._replace(spare=UNBOUND), bids[1]]
    assert share_out(free, [0.0, 1.0, 2.0, 2.3, 4.0])[0] == [3, 0]
    assert share_out(bids, [0.0])[0] == [2, 0]
