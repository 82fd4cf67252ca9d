"""Who goes next, by a clock that only the answers move."""

from __future__ import annotations

from localspec.race.turns import Ends, lead
from tests.race.laps import MadeUp, laps_of, sample
from tests.support.clock import Clock


def test_the_one_that_is_behind_goes_next() -> None:
    clock = Clock()
    plain = MadeUp(clock, [(1.0, "p", 1)] * 6)
    ours = MadeUp(clock, [(2.5, "l", 3)] * 2)
    laps = laps_of([plain, ours], clock)
    # At 0 : 0, 1 : 0, 1 : 2.5, 2 : 2.5, 3 : 2.5, 3 : 5, 4 : 5 and 5 : 5.
    assert "".join(lap.text for lap in laps) == "plpplppp"
    assert [lap.seconds for lap in laps] == [1.0, 2.5, 2.0, 3.0, 5.0, 4.0, 5.0, 6.0]


def test_measuring_is_no_part_of_a_race() -> None:
    clock = Clock()
    answers = [MadeUp(clock, [(1.0, "p", 1)]), MadeUp(clock, [(1.0, "l", 1)], measuring=2.0)]
    laps = laps_of(answers, clock)
    assert [lap.seconds for lap in laps] == [1.0, 1.0]


def test_the_lead_is_in_seconds_at_the_last_token_that_both_have() -> None:
    ends: tuple[Ends, Ends] = ([(0, 0.0)], [(0, 0.0)])
    leads = []
    for lap in sample():
        before = ends[lap.lane]
        before.append((before[-1][0] + len(lap.token_ids), lap.seconds))
        leads.append(lead(*ends))
    # after: p1, l1, p2, l5, p3, p4, p5; localspec has all from the second on at 3.0
    assert leads == [None, -0.25, -0.25, -1.0, 0.0, 1.0, 2.0]
