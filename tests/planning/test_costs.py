"""Cost curves: what is measured, what is filled in between, and what live passes teach."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from localspec.planning.costs import CONTEXT_STEP, CostCurve

TILES = {1: 1.0, 2: 1.8, 3: 2.6, 4: 1.7, 5: 2.5, 6: 3.3, 7: 4.1, 8: 3.1}
"""Made-up milliseconds of a machine whose kernels work in tiles of four."""


def curve_of(measured: Mapping[int, float], context: int = 0) -> CostCurve:
    curve = CostCurve()
    curve.learn(measured, context)
    return curve


def test_nothing_is_known_at_first() -> None:
    curve = CostCurve()
    assert not curve
    assert curve.seconds(1, 0) == 0.0
    assert curve_of({1: 1.0})


def test_measured_sizes_are_taken_as_they_are() -> None:
    curve = curve_of(TILES)
    assert [curve.seconds(n, 0) for n in TILES] == list(TILES.values())


def test_sizes_between_lie_on_the_line() -> None:
    curve = curve_of({2: 2.0, 6: 4.0, 10: 3.0})
    assert [curve.seconds(n, 0) for n in (2, 3, 4, 5, 6)] == pytest.approx([2, 2.5, 3, 3.5, 4])
    assert curve.seconds(8, 0) == pytest.approx(3.5)


def test_beyond_the_measured_sizes() -> None:
    """Fewer tokens cost what the fewest do, more of them at least their share."""
    curve = curve_of({2: 2.0, 8: 4.0})
    assert curve.seconds(1, 0) == 2.0
    assert curve.seconds(16, 0) == pytest.approx(8.0)
    assert curve.seconds(64, 0) == pytest.approx(32.0)


def test_other_contexts_lie_on_the_line_through_the_known_ones() -> None:
    curve = curve_of({1: 1.0, 4: 2.0})
    curve.learn({1: 1.5, 4: 4.0}, 2 * CONTEXT_STEP)
    for context, single, four in (
        (0, 1.0, 2.0),
        (CONTEXT_STEP - 1, 1.0, 2.0),
        (CONTEXT_STEP, 1.25, 3.0),
        (2 * CONTEXT_STEP, 1.5, 4.0),
        (3 * CONTEXT_STEP, 1.75, 5.0),
        (6 * CONTEXT_STEP, 2.5, 8.0),
    ):
        assert curve.seconds(1, context) == pytest.approx(single)
        assert curve.seconds(4, context) == pytest.approx(four)


def test_between_three_known_contexts_the_nearer_two_count() -> None:
    curve = curve_of({1: 1.0})
    curve.learn({1: 2.0}, 4 * CONTEXT_STEP)
    curve.learn({1: 10.0}, 8 * CONTEXT_STEP)
    assert curve.seconds(1, 2 * CONTEXT_STEP) == pytest.approx(1.5)
    assert curve.seconds(1, 6 * CONTEXT_STEP) == pytest.approx(6.0)


def test_one_known_context_stands_for_all() -> None:
    curve = curve_of({1: 1.0, 8: 3.0}, 4 * CONTEXT_STEP)
    for context in (0, 10 * CONTEXT_STEP):
        assert curve.seconds(8, context) == 3.0


def test_falling_costs_are_not_drawn_on_below_half() -> None:
    """Noise in a calibration must not make long contexts free."""
    curve = curve_of({1: 1.0})
    curve.learn({1: 0.7}, CONTEXT_STEP)
    assert curve.seconds(1, 20 * CONTEXT_STEP) >= 0.35


def test_sizes_worth_choosing_leave_out_what_a_larger_pass_beats() -> None:
    assert curve_of(TILES).sizes(8, 0) == [1, 4, 5, 8]
    assert curve_of(TILES).sizes(7, 0) == [1, 4, 5, 6, 7]
    assert curve_of({1: 2.0, 2: 1.0}).sizes(2, 0) == [2]
    assert curve_of({1: 1.0, 8: 8.0}).sizes(4, 0) == [1, 2, 3, 4]


@pytest.mark.parametrize("context", [0, CONTEXT_STEP, 3 * CONTEXT_STEP + 7])
@pytest.mark.parametrize("most", [1, 3, 8, 11, 64])
def test_row_is_what_the_sizes_cost(most: int, context: int) -> None:
    curve = curve_of({1: 1.0, 2: 1.8, 4: 1.7, 8: 3.1, 16: 5.0})
    curve.learn({1: 1.2, 4: 2.5, 16: 7.0}, CONTEXT_STEP)
    wanted = [0.0, *(curve.seconds(n, context) for n in range(1, most + 1))]
    assert curve.row(most, context) == pytest.approx(wanted)


def test_round_trip_through_json() -> None:
    curve = curve_of(TILES)
    curve.learn({1: 2.0, 4: 3.0}, 3 * CONTEXT_STEP)
    curve.observe(4, 0, 2.0)
    again = CostCurve.from_dict(json.loads(json.dumps(curve.as_dict())))
    assert again.as_dict() == curve.as_dict()
    assert again.seconds(5, 3 * CONTEXT_STEP) == pytest.approx(3.75)
    assert again.pace == 1.0, "how fast the machine was then says nothing about now"
    assert not CostCurve.from_dict(CostCurve().as_dict())


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        3,
        {"0": None},
        {"0": [1.0]},
        {"0": {}},
        {"0": {"1": None}},
        {"0": {"1": "fast"}},
        {"0": {"one": 1.0}},
        {"first": {"1": 1.0}},
        {"0": {"0": 1.0}},
        {"0": {"-1": 1.0}},
        {"0": {"1": 0.0}},
        {"0": {"1": -1.0}},
        {"0": {"1": math.inf}},
        {"0": {"1": math.nan}},
        {"-1": {"1": 1.0}},
    ],
    ids=repr,
)
def test_broken_record_is_refused(broken: Any) -> None:
    with pytest.raises(ValueError):
        CostCurve.from_dict(broken)


class Machine:
    """Takes its time by a true curve, times how slow it is just now, with noise."""

    def __init__(self, true: Mapping[int, float], seed: int, *, noise: float = 0.04) -> None:
        self.true = dict(true)
        self.slowness = 1.0
        self._noise = noise
        self._rng = np.random.default_rng(seed)

    def run(self, curve: CostCurve, steps: int, sizes: tuple[int, ...] = (1, 2, 4, 5, 8)) -> None:
        """Live passes of mixed sizes."""
        for n in self._rng.choice(sizes, size=steps).tolist():
            late = abs(self._rng.normal(0.0, self._noise))
            curve.observe(n, 100, self.true[n] * self.slowness * (1.0 + late))

    def ratio(self, n: int) -> float:
        return self.true[n] / self.true[1]


def ratio(curve: CostCurve, n: int) -> float:
    """What decisions rest on: the cost of n tokens in passes over one."""
    return curve.seconds(n, 100) / curve.seconds(1, 100)


@pytest.mark.parametrize("seed", range(4))
def test_live_passes_put_a_poor_calibration_right(seed: int) -> None:
    """Off by up to 30 % at each size: right within 5 % after 100 passes of each."""
    machine = Machine(TILES, seed)
    rng = np.random.default_rng(seed + 50)
    curve = curve_of({n: t * float(rng.uniform(0.7, 1.3)) for n, t in TILES.items()})
    machine.run(curve, 500)
    for n in (1, 2, 4, 5, 8):
        assert ratio(curve, n) == pytest.approx(machine.ratio(n), rel=0.05)


@pytest.mark.parametrize("slowness", [3.0, 0.4])
def test_another_process_for_a_second_changes_no_decision(slowness: float) -> None:
    """60 steps at a third of the speed: the pace takes it, the ratios stay, the pace recovers."""
    machine, curve = Machine(TILES, 9), curve_of(TILES)
    machine.run(curve, 400)
    before = {n: curve.seconds(n, 100) for n in TILES}
    machine.slowness = slowness
    machine.run(curve, 60)
    assert curve.pace == pytest.approx(slowness, rel=0.25)
    for n in (1, 2, 4, 5, 8):
        assert ratio(curve, n) == pytest.approx(machine.ratio(n), rel=0.05)
    machine.slowness = 1.0
    machine.run(curve, 80)
    assert curve.pace == pytest.approx(1.0, abs=0.08)
    for n in (1, 2, 4, 5, 8):
        assert ratio(curve, n) == pytest.approx(machine.ratio(n), rel=0.05)
        assert curve.seconds(n, 100) == pytest.approx(before[n], rel=0.15)


def test_single_slow_pass_moves_little() -> None:
    machine, curve = Machine(TILES, 2), curve_of(TILES)
    machine.run(curve, 200)
    before = {n: curve.seconds(n, 100) for n in TILES}
    curve.observe(4, 100, 500.0)
    for _ in range(40):
        machine.run(curve, 1, (1,))
    for n in TILES:
        assert curve.seconds(n, 100) == pytest.approx(before[n], rel=0.05)
    assert curve.pace < 1.2


def test_lasting_change_of_one_size_gets_through() -> None:
    machine, curve = Machine(TILES, 5), curve_of(TILES)
    machine.run(curve, 400)
    machine.true[4] = 2.6
    machine.run(curve, 1000)
    assert ratio(curve, 4) == pytest.approx(machine.ratio(4), rel=0.08)
    for n in (2, 5, 8):
        assert ratio(curve, n) == pytest.approx(machine.ratio(n), rel=0.08)


def test_size_that_was_never_calibrated_is_learned() -> None:
    curve = curve_of({1: 1.0, 8: 8.0})
    machine = Machine({1: 1.0, 4: 1.7, 8: 8.0}, 3)
    machine.run(curve, 400, (1, 4, 8))
    assert ratio(curve, 4) == pytest.approx(1.7, rel=0.1)


def test_first_pass_of_all_is_taken_as_it_is() -> None:
    curve = CostCurve()
    curve.observe(1, 0, 2.0)
    assert curve.seconds(1, 0) == 2.0
    curve.observe(1, 0, 0.0)
    curve.observe(1, 0, -1.0)
    assert curve.seconds(1, 0) == 2.0
    assert curve.pace == 1.0


def test_far_context_begins_with_what_near_ones_cost() -> None:
    curve = curve_of(TILES)
    for _ in range(curve.REFRESH):
        curve.observe(1, 5 * CONTEXT_STEP, 1.0)
    for n, seconds in TILES.items():
        assert curve.seconds(n, 5 * CONTEXT_STEP) == pytest.approx(seconds, rel=0.05)
    assert str(5) in curve.as_dict()


def test_version_says_when_answers_change() -> None:
    curve = curve_of(TILES)
    seen = {curve.version: curve.seconds(4, 0)}
    for _ in range(5 * curve.REFRESH):
        curve.observe(4, 0, 2.5)
        assert seen.setdefault(curve.version, curve.seconds(4, 0)) == curve.seconds(4, 0)
    assert len(seen) == 6
