"""What passes cost one of several answers, and what that makes of its drafts."""

from __future__ import annotations

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
from tests.scheduling.test_scheduler import NotedCache

TILES = {1: 1.0, 2: 1.54, 3: 2.17, 4: 1.52, 8: 2.82, 16: 4.28, 32: 8.0, 64: 15.0}
"""T(n) in passes over one token of a 1 B model in Q4_0 on a CPU, see FACTS: tiles of four."""


class Table:
    """So many answers that share passes of known cost."""

    def __init__(self, answers: int, costs: dict[int, float] = TILES) -> None:
        self.profile = PairProfile()
        self.costs = SharedCosts(self.profile)
        self.profile.target.learn({n: 0.025 * cost for n, cost in costs.items()}, 0)
        caches: dict[Wait, Any] = {Wait.TARGET: NotedCache()}
        self.scheduler = SharedScheduler(answers, caches, cells=100)
        self.tasks = self.scheduler.tasks
        for _ in range(answers):
            self.tasks.append(Task((), lambda task: None, wait=True, wake=lambda: None))
            self.tasks[-1].reading = False

    def view(self, number: int = 0) -> SharedCurve:
        others, bid = self.scheduler.others, self.scheduler.bid
        found = SharedCurve(self.costs, self.tasks[number], others, bid)
        found.refresh()
        return found

    def seconds(self, n: int) -> float:
        return self.profile.target.seconds(n, 0)


def asking(task: Task, tokens: int) -> Task:
    """The task, once it waits for a pass over so many tokens."""
    task.request(Wait.TARGET, part=PassPart([0] * tokens, range(tokens), ((0,),), tokens))
    return task


def drafted(table: Table, chance: float) -> int:
    """How many tokens of a chain are worth verifying, each right with this chance."""
    seconds = table.profile.verifying(0, 16, table.view())
    worth = Worth(seconds, 1.0 / seconds[1], 1e9)
    return worth.count([chance**n for n in range(1, 17)])


def test_an_answer_alone_has_the_costs_of_always() -> None:
    table = Table(1)
    real = table.profile
    assert table.view().row(20, 5) == real.target.row(20, 5)
    assert table.view().plain(5) == real.target.plain(5)
    assert real.verifying(0, 20, table.view()) == real.verifying(0, 20)


def test_the_more_answers_the_fewer_drafts() -> None:
    """Down to none, where each row costs what it brings."""
    costs = {n: 1.0 + 0.2 * n for n in (1, 2, 4, 8, 16, 32, 64)}
    lengths = [drafted(Table(answers, costs), 0.7) for answers in (1, 2, 4, 8, 16)]
    assert lengths[0] >= 3
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0


def test_shares_add_up_and_those_who_draft_pay_for_it() -> None:
    table = Table(3)
    asked = [asking(task, n) for task, n in zip(table.tasks, (1, 1, 6), strict=True)]
    plain, same, more = table.costs.weigh(Wait.TARGET, asked)
    assert plain == same < more
    assert plain + same + more == pytest.approx(table.seconds(8))


def test_after_many_drafted_passes_a_plain_one_is_made() -> None:
    table = Table(2)
    for _ in range(CostCurve.OVERDUE):
        assert not table.view().doubtful(0)
        asked = [asking(task, 2) for task in table.tasks]
        table.costs.passed(Wait.TARGET, asked, table.seconds(4))
    assert table.view(0).doubtful(0)
    assert table.view(1).doubtful(0)
    plain = [asking(task, 1) for task in table.tasks]
    table.costs.passed(Wait.TARGET, plain, table.seconds(2))
    assert not table.view().doubtful(0)


def test_who_reads_a_prompt_in_passes_of_its_own_is_not_counted() -> None:
    table = Table(4)
    for task in table.tasks[2:]:
        task.reading = True
    least = table.seconds
    assert table.view().seconds(1, 0) == pytest.approx(least(2) / 2)
    assert table.view().seconds(3, 0) == pytest.approx(least(2) / 2 + least(4) - least(2))


def test_passes_of_one_beside_prompts_teach_the_curve() -> None:
    """Its planner does not learn from them, and would wait for a plain pass for ever."""
    for alone in (False, True):
        table = Table(2)
        table.tasks[0].alone = alone
        before = table.profile.target.plain(0)
        for _ in range(20):
            table.costs.passed(Wait.TARGET, [asking(table.tasks[0], 1)], 3.0 * before)
        # Of one alone its planner learns.
        assert (table.profile.target.plain(0) > 1.5 * before) == (not alone)


# What several answers verify together is the best that they could.

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
def test_no_other_choice_is_worth_more(table: tuple[list[Bid], list[float]]) -> None:
    bids, further = table
    counts, each = share_out(bids, further)
    best = max(
        worth(bids, choice, further)
        for choice in product(*(range(len(bid.reaches) + 1) for bid in bids))
    )
    assert worth(bids, tuple(counts), further) == pytest.approx(best)
    assert each * sum(counts) == pytest.approx(further[sum(counts)] if sum(counts) else 0.0)


@given(tables(), st.lists(st.floats(0.0, 3.0), min_size=4, max_size=4))
def test_nobody_stakes_more_than_it_may(
    table: tuple[list[Bid], list[float]], spare: list[float]
) -> None:
    bids = [bid._replace(spare=most) for bid, most in zip(table[0], spare, strict=False)]
    counts, each = share_out(bids, table[1])
    assert all(count * each <= bid.spare + 1e-9 for bid, count in zip(bids, counts, strict=True))


def test_a_pass_that_is_cheap_at_one_size_is_filled_by_all() -> None:
    """Eight rows for what one costs: none of four answers would pay for that alone."""
    bids = [Bid([0.6, 0.4], 0, 1.0, UNBOUND)] * 4
    further = [0.0, *[2.0] * 8, 4.0]
    assert share_out(bids[:1], further)[0] == [0]
    assert share_out(bids, further) == ([2, 2, 2, 2], 0.25)


def test_what_was_drawn_is_verified() -> None:
    """Whatever it costs; what was looked up behind it only where it pays."""
    bids = [Bid([0.1, 0.1, 0.9], 2, 1.0, 0.0), Bid([0.2], 0, 1.0, UNBOUND)]
    assert share_out(bids, [0.0, 1.0, 2.0, 2.3, 4.0])[0] == [2, 0]
    free = [bids[0]._replace(spare=UNBOUND), bids[1]]
    assert share_out(free, [0.0, 1.0, 2.0, 2.3, 4.0])[0] == [3, 0]
    assert share_out(bids, [0.0])[0] == [2, 0]
