"""What passes cost one of several answers, and what that makes of its drafts."""

from __future__ import annotations

import pytest

from localspec.llama.shared_context import Part
from localspec.planning.costs import CostCurve
from localspec.planning.draft_value import DraftValue
from localspec.planning.pair_profile import PairProfile
from localspec.planning.plan import AdaptivePlan, Candidate
from localspec.scheduling.crowd import Crowd
from localspec.scheduling.members import DRAFT, TARGET, Member, Request
from localspec.scheduling.rounds import Rounds
from tests.scheduling.test_rounds import NotedLane

TILES = {1: 1.0, 2: 1.54, 3: 2.17, 4: 1.52, 8: 2.82, 16: 4.28, 32: 8.0, 64: 15.0}
"""T(n) in passes over one token of a 1 B model in Q4_0 on a CPU, see FACTS: tiles of four."""


class Table:
    """So many answers that share passes of known cost."""

    def __init__(self, answers: int, costs: dict[int, float] = TILES) -> None:
        self.crowd, self.profile = Crowd(), PairProfile()
        self.crowd.serve(self.profile, (None, None))
        self.profile.target.learn({n: 0.025 * cost for n, cost in costs.items()}, 0)
        self.rounds = Rounds((None, NotedLane()), cells=100)
        self.members = [self.rounds.join(lambda: 0) for _ in range(answers)]
        for member in self.members:
            member.late = False

    def view(self, number: int = 0) -> PairProfile:
        return self.crowd.view(self.members[number], self.rounds)

    def seconds(self, n: int) -> float:
        return self.profile.target.seconds(n, 0)

    def least(self, n: int) -> float:
        return min(self.seconds(m) for m in range(n, 40))


def request(member: Member, tokens: int, lane: int = TARGET) -> Request:
    return Request(member, lane, Part([0] * tokens, range(tokens), ((0,),), tokens))


def drafted(profile: PairProfile, chance: float) -> int:
    """How many tokens of a chain are worth verifying, each right with this chance."""
    least = profile.verification_costs(0, 16).least
    rate = 1.0 / least[1]
    worth = [
        sum(chance**i for i in range(n + 1)) - rate * least[n + 1] for n in range(len(least) - 1)
    ]
    return max(range(len(worth)), key=worth.__getitem__)


def test_an_answer_alone_has_the_costs_of_always() -> None:
    table = Table(1)
    real = table.profile
    assert table.view().target.row(20, 5) == real.target.row(20, 5)
    assert table.view().target.plain(5) == real.target.plain(5)
    before, after = table.view().verification_costs(0, 20), real.verification_costs(0, 20)
    assert (before.least, before.size) == (after.least, after.size)


@pytest.mark.parametrize("answers", [2, 3, 5, 8])
def test_plain_steps_share_the_pass_evenly(answers: int) -> None:
    table = Table(answers)
    assert table.view().target.seconds(1, 0) == pytest.approx(table.least(answers) / answers)
    assert table.view().target.plain(0) == pytest.approx(table.least(answers) / answers)


@pytest.mark.parametrize("rows", [[1, 1, 1], [4, 1, 2], [3, 5, 1], [2, 2, 2]])
def test_what_answers_pay_one_after_the_other_is_what_the_pass_takes(rows: list[int]) -> None:
    """Each sees what the ones before it asked for."""
    table = Table(len(rows))
    paid = 0.0
    for number, count in enumerate(rows):
        paid += table.view(number).target.seconds(count, 0)
        table.members[number].request = request(table.members[number], count)
    # T(k) ÷ k each, and what each added to a pass with one row for everybody behind it.
    assert paid == pytest.approx(table.least(sum(rows)))


def test_the_more_answers_the_fewer_drafts() -> None:
    """Down to none, where each row costs what it brings."""
    costs = {n: 1.0 + 0.2 * n for n in (1, 2, 4, 8, 16, 32, 64)}
    lengths = [drafted(Table(answers, costs).view(), 0.7) for answers in (1, 2, 4, 8, 16)]
    assert lengths[0] >= 3
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 0


def test_who_drafted_beside_others_verifies_at_what_rows_cost_by_then() -> None:
    """All planned before any of them asked for rows; the last one finds none left that pay."""
    table = Table(4, {n: 1.0 + 0.05 * n + 0.01 * n * n for n in (1, 2, 4, 8, 16, 24, 32, 64)})
    views = [table.view(number) for number in range(4)]
    candidates = [
        Candidate(n, n - 1, n + 1, "any", None, (), 0.8, 0.8 ** (n + 1), None, False)
        for n in range(8)
    ]
    plans = [view.verification_costs(0, 8) for view in views]
    counts = []
    for view, costs, member in zip(views, plans, table.members, strict=True):
        plan = AdaptivePlan("auto", 8, costs=costs, rate=1.0 / costs.least[1])
        value = DraftValue(plan)
        asked = len(value.select(candidates)[0])
        value.reprice(view.present_costs(costs, 0))
        counts.append(len(value.select(candidates)[0]))
        assert counts[-1] <= asked
        member.request = request(member, 1 + counts[-1])
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == asked > counts[-1]


def test_alone_the_costs_of_the_plan_hold() -> None:
    table = Table(1)
    costs = table.view().verification_costs(0, 8)
    assert table.view().present_costs(costs, 0) is costs


def test_rows_that_cost_nothing_are_taken_by_one_only() -> None:
    """A pass over four is cheaper than one over three: the first who plans fills it up."""
    table = Table(3)
    first = drafted(table.view(0), 0.5)
    assert first == 1
    table.members[0].request = request(table.members[0], 1 + first)
    assert drafted(table.view(1), 0.5) == 0


def test_a_pass_is_padded_where_that_is_cheaper() -> None:
    table = Table(3)
    requests = [request(member, 1) for member in table.members]
    assert table.crowd.padding(TARGET, requests) == 1
    assert table.crowd.padding(TARGET, requests[:2]) == 2
    assert table.crowd.padding(DRAFT, requests) == 0
    assert table.crowd.padding(TARGET, [*requests, request(table.members[0], 1)]) == 0


def test_shares_add_up_and_those_who_draft_pay_for_it() -> None:
    table = Table(3)
    requests = [request(member, n) for member, n in zip(table.members, (1, 1, 6), strict=True)]
    plain, same, more = table.crowd.weigh(TARGET, requests)
    assert plain == same < more
    assert plain + same + more == pytest.approx(table.least(8))


def test_the_curve_learns_from_shared_passes() -> None:
    table = Table(4)
    requests = [request(member, 1) for member in table.members]
    for _ in range(200):
        table.crowd.passed(TARGET, requests, 0, 3.0 * table.seconds(4))
    assert table.profile.target.pace > 1.5


def test_after_many_drafted_passes_a_plain_one_is_made() -> None:
    table = Table(2)
    for _ in range(CostCurve.OVERDUE):
        assert not table.view().target.doubtful
        requests = [request(member, 2) for member in table.members]
        table.crowd.passed(TARGET, requests, 0, table.seconds(4))
    assert table.view(0).target.doubtful
    assert table.view(1).target.doubtful
    plain = [request(member, 1) for member in table.members]
    table.crowd.passed(TARGET, plain, 0, table.seconds(2))
    assert not table.view().target.doubtful


def test_who_is_slow_to_come_back_is_not_counted() -> None:
    table = Table(4)
    for member in table.members[1:]:
        member.late = True
    assert table.view().target.seconds(3, 0) == table.seconds(3)
