"""Cost curves: calibration, interpolation, and learning from live passes."""

import math
from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pytest

from localspec.policy.cost_curve import CostCurve

TILES = {1: 1.0, 2: 1.8, 3: 2.6, 4: 1.7, 5: 2.5, 6: 3.3, 7: 4.1, 8: 3.1}
"""Milliseconds of a machine whose kernels work in tiles of four."""


def curve_of(measured: Mapping[int, float], context: int = 0) -> CostCurve:
    curve = CostCurve()
    curve.learn(measured, context)
    return curve


FAR = 520


def linear(near: Mapping[int, float], fixed: float, each: float, context: int) -> dict[int, float]:
    """Costs of passes after `context` cached tokens, each of which adds fixed + each · n."""
    return {n: seconds + (fixed + each * n) * context for n, seconds in near.items()}


@pytest.mark.parametrize(("fixed", "each"), [(1e-3, 2e-4), (0.0, 5e-4), (2e-3, 0.0)])
def test_two_context_lengths_determine_all_costs(fixed: float, each: float) -> None:
    """Also of sizes that were measured at the short length only, and of larger ones."""
    curve = curve_of(linear(TILES, fixed, each, 9), 9)
    curve.learn(linear({n: TILES[n] for n in (1, 4, 8)}, fixed, each, FAR), FAR)
    for at in (0, 100, FAR, 6000):
        for n, cost in linear(TILES | {16: 2.0 * TILES[8]}, fixed, each, at).items():
            assert [curve.seconds(n, at), curve.row(16, at)[n]] == pytest.approx([cost] * 2, 0.02)


def test_costs_that_fall_with_the_length_are_noise() -> None:
    """Noise must not make long contexts free."""
    curve = curve_of({1: 1.0, 4: 2.0})
    curve.learn({1: 0.7, 4: 1.8}, FAR)
    assert curve.seconds(1, 20 * FAR) == pytest.approx(1.0)
    assert curve.seconds(4, 20 * FAR) == pytest.approx(2.0)


class Machine:
    """True costs, times a current slowness, with noise."""

    def __init__(self, true: Mapping[int, float], seed: int) -> None:
        self.true, self.slowness = true, 1.0
        self._rng = np.random.default_rng(seed)

    def run(self, curve: CostCurve, steps: int) -> None:
        for n in self._rng.choice((1, 2, 4, 5, 8), size=steps).tolist():
            late = abs(self._rng.normal(0.0, 0.04))
            curve.observe(n, 100, self.true[n] * self.slowness * (1.0 + late))


def ratio(curve: CostCurve, n: int) -> float:
    """The cost of a pass over n tokens in plain passes, on which decisions depend."""
    return curve.seconds(n, 100) / curve.seconds(1, 100)


def check_ratios(curve: CostCurve, true: Mapping[int, float]) -> None:
    for n in (1, 2, 4, 5, 8):
        assert ratio(curve, n) == pytest.approx(true[n] / true[1], rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_live_passes_correct_a_poor_calibration(seed: int) -> None:
    """Errors of up to 30% at each size fall below 5% after 100 passes of each."""
    machine = Machine(TILES, seed)
    rng = np.random.default_rng(seed + 50)
    curve = curve_of({n: t * float(rng.uniform(0.7, 1.3)) for n, t in TILES.items()})
    machine.run(curve, 500)
    check_ratios(curve, TILES)


@pytest.mark.parametrize("slowness", [3.0, 0.4])
def test_short_load_changes_no_ratio(slowness: float) -> None:
    """60 steps at another speed change the pace, which recovers, but no ratios."""
    machine, curve = Machine(TILES, 9), curve_of(TILES)
    machine.run(curve, 400)
    before = {n: curve.seconds(n, 100) for n in TILES}
    machine.slowness = slowness
    machine.run(curve, 60)
    assert curve.pace == pytest.approx(slowness, rel=0.25)
    check_ratios(curve, TILES)
    machine.slowness = 1.0
    machine.run(curve, 80)
    assert curve.pace == pytest.approx(1.0, abs=0.08)
    check_ratios(curve, TILES)
    assert {n: curve.seconds(n, 100) for n in TILES} == pytest.approx(before, rel=0.15)


def test_live_passes_in_long_texts_correct_the_cost_of_the_cache() -> None:
    """Calibration missed the cost per token of a pass; uncalibrated sizes are corrected too."""
    curve = curve_of(TILES)
    curve.learn(linear({1: 1.0, 4: 1.7, 8: 3.1}, 3e-4, 0.0, FAR), FAR)
    true = linear(TILES, 2e-4, 1e-4, 6000)
    before = curve.seconds(8, 6000) / curve.seconds(1, 6000)
    for _ in range(60):
        for n in (1, 4):
            curve.observe(n, 6000, true[n])
    after = curve.seconds(8, 6000) / curve.seconds(1, 6000)
    wanted = true[8] / true[1]
    assert abs(after - wanted) < 0.7 * abs(before - wanted)
    seen = curve.seconds(4, 6000) / curve.seconds(1, 6000)
    assert seen == pytest.approx(true[4] / true[1], rel=0.25), "it was 0.66 of that"
    for n in TILES:
        assert curve.seconds(n, 0) == pytest.approx(TILES[n], rel=0.15), "that was measured well"


def test_stored_curve_has_no_current_pace() -> None:
    curve = CostCurve(curve_of(TILES).sizes)
    assert curve.doubtful(0)
    curve.observe(4, 0, 3 * TILES[4])
    assert curve.doubtful(0)
    for _ in range(2):
        curve.observe(1, 0, 3 * TILES[1])
    assert curve.plain(0) == pytest.approx(3 * TILES[1], rel=0.01)
    assert not CostCurve().doubtful(0)


def test_another_text_length_requires_a_plain_pass() -> None:
    curve = curve_of(TILES)
    assert not curve.doubtful(10_000), "a fresh calibration replaces a plain pass"
    curve.observe(1, 1000, TILES[1])
    for context, far in ((1000, False), (1511, False), (1512, True), (488, True)):
        assert curve.doubtful(context) is far
    curve.observe(1, 1512, TILES[1])
    assert not curve.doubtful(1512)
    assert curve.doubtful(1000), "and back"


def observe_passes(
    curve: CostCurve,
    true: Callable[[int, int], float],
    passes: int,
    longest: int,
    delayed: float = 0,
) -> None:
    """Passes of usual sizes in texts of up to `longest` tokens, some of them delayed."""
    random = Random(1)
    for _ in range(passes):
        n = random.choices([1, 2, 3, 4, 8, 16], [20, 3, 3, 6, 2, 1])[0]
        context = random.randrange(20, longest)
        late = random.uniform(2, 20) if delayed and random.random() < delayed else 1.0
        curve.observe(n, context, true(n, context) * late * math.exp(random.gauss(0, 0.05)))


@pytest.mark.parametrize("longest", [250, 900])
def test_delayed_passes_do_not_change_table_or_pace(longest: int) -> None:
    """30,000 passes, a few minutes of a small model, of which one in thirty is delayed."""
    near = {1: 1.0, 2: 1.5, 3: 1.8, 4: 2.0, 8: 3.0, 16: 5.0}

    def true(n: int, context: int) -> float:
        return near[n] + (2e-3 + 5e-4 * n) * context

    curve = CostCurve()
    for context in (0, 520):
        curve.learn({n: true(n, context) for n in near}, context)
    observe_passes(curve, true, 30_000, longest, delayed=0.03)
    assert abs(math.log(curve.pace)) < 0.4
    for n in near:
        for context in (20, 200):
            seconds = curve.pace * curve.seconds(n, context)
            assert 0.9 < seconds / true(n, context) < 1.3  # a pass takes 1.3 times that on average


@pytest.mark.parametrize("longest", [100, 400])
def test_calibration_of_a_busy_moment_is_corrected(longest: int) -> None:
    """Passes after 520 tokens were measured 200 times too slow."""
    near = {1: 0.085, 2: 0.11, 3: 0.13, 4: 0.15, 8: 0.25, 16: 0.4}

    def true(n: int, context: int) -> float:
        return near[n] + 1e-5 * n * context

    curve = CostCurve()
    curve.learn(near, 0)
    curve.learn({n: near[n] + 2e-3 * n * 520 for n in (1, 4, 8, 16)}, 520)
    observe_passes(curve, true, 1000, longest)
    for n in near:
        seconds = curve.pace * curve.seconds(n, longest // 2)
        assert 0.7 < seconds / true(n, longest // 2) < 1.5
    assert all(curve.seconds(n, 0) > 0.0 for n in near)
