"""The budget limits drafts that lose, not drafts that pay: right or partly right drafts on noisy
machines are as fast as without a budget."""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress

import numpy as np
import pytest

from localspec.policy.budget import Budget
from localspec.policy.cost_curve import CostCurve
from tests.policy.adversaries import PROMPT, Figures, Machine, Text, answers
from tests.policy.measuring import SHAPES, TILES

WAYS = [(False, True), (True, True), (True, False)]
Q4_0 = (1, 1.7, 2.4, 1.9, 2.7, 3.0, 3.3, 3.7, 4.0, 4.3, 4.6, 4.9, 5.0, 5.1, 5.15, 5.2)
"""T(n) ÷ T(1) of a 1.5 B model in Q4_0 on two cores."""
LATER = 200  # tokens after which luck at the beginning no longer counts


@contextmanager
def unlimited() -> Iterator[None]:
    """Without a limit of the budget, and without confirming plain passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "open", lambda self, plain: math.inf)
        patch.setattr(Budget, "exposed", lambda self, plain: False)
        patch.setattr(CostCurve, "OVERDUE", 10**9)
        yield


@pytest.mark.parametrize("shape", ["flat", "tiles", "steep"])
@pytest.mark.parametrize(("model", "greedy"), WAYS)
def test_drafts_that_are_right(shape: str, model: bool, greedy: bool) -> None:
    def run() -> tuple[float, int, int]:
        """The speed-up of drafted steps, their number, and the number of other steps."""
        plain, seconds, drafted = list[float](), list[float](), list[bool]()
        for seed in range(1, 4):
            machine, text = Machine(SHAPES[shape]), Text(lambda at: 99)
            lengths = (300, 300)
            found = answers(machine, text, lengths=lengths, model=model, greedy=greedy, seed=seed)[
                1
            ]
            steps = [bool(step.tree.tokens) for step in found.steps]
            plain += compress(found.plain, steps)
            seconds += compress(found.seconds, steps)
            drafted += steps
        return sum(plain) / sum(seconds), sum(drafted), drafted.count(False)

    held, drafted, confirming = run()
    with unlimited():
        free, _, undrafted = run()
    assert free > 1.15
    assert held >= 0.97 * free
    # Confirming plain passes: some at first, and then one for ten drafts.
    assert confirming - undrafted <= 3 * 4 + drafted / 10


def partly_right(right: float) -> Text:
    """Each token of a draft is right with this probability."""
    return Text(
        lambda at: int(at.random.geometric(1.0 - right)) - 1, lambda at: at.random.random() < right
    )


def speed(run: Figures) -> float:
    """Tokens per second after the first ones."""
    tokens, seconds = np.array(run.tokens), np.array(run.seconds)
    late = np.cumsum(tokens) > LATER
    return float(tokens[late].sum() / seconds[late].sum())


def speed_of(
    shape: Sequence[float], right: float, price: float, sigma: float, *, greedy: bool, seed: int
) -> float:
    """Tokens per second, with drafts of which each token is right with this probability, on a
    machine whose passes are slower or faster by factors of which the logarithm is normal."""
    noise = np.exp(sigma * np.random.default_rng(1000 + seed).standard_normal(4096))
    machine = Machine(shape, one=0.12, price=price, pace=lambda passes: float(noise[passes % 4096]))
    text = partly_right(right)
    return speed(answers(machine, text, lengths=(800,), greedy=greedy, seed=seed)[1])


@pytest.mark.nightly
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("shape", [TILES, Q4_0], ids=["tiles", "Q4_0"])
def test_drafts_that_are_partly_right_under_noise(shape: tuple[float, ...], greedy: bool) -> None:
    """Noisy plain passes must not make drafts seem to lose, so that the fund empties."""
    for right, price, sigma in [(0.8, 0.1, 0.25), (0.8, 0.25, 0.1), (0.9, 0.25, 0.25)]:
        found = []
        for seed in range(1, 4):
            held = speed_of(shape, right, price, sigma, greedy=greedy, seed=seed)
            with unlimited():
                free = speed_of(shape, right, price, sigma, greedy=greedy, seed=seed)
            found.append(held / free)
        # One run of a few hundred tokens is luck by up to a fifth either way.
        assert statistics.mean(found) >= 0.93, (right, price, sigma, found)


class MachineOfChangedPace(Machine):
    """A machine that was slower by a factor while the target was calibrated."""

    then = 1.0

    def calibrated(self) -> dict[int, float]:
        return {n: self.then * seconds for n, seconds in super().calibrated().items()}


@pytest.mark.parametrize("then", [0.5, 1.8])
def test_target_and_draft_model_measured_at_different_moments(then: float) -> None:
    """Predicted times of steps are right; relative costs of draft passes once were not."""
    machine = MachineOfChangedPace(Q4_0, one=0.12, price=0.25)
    machine.then = then
    _, run = answers(machine, partly_right(0.8), lengths=(600,))
    late = [n for n, step in enumerate(run.steps) if n > 20 and step.draft_seconds]
    assert len(late) > 20
    expected_seconds = sum(run.expected_seconds[n] for n in late)
    assert expected_seconds == pytest.approx(sum(run.seconds[n] for n in late), rel=0.03)


class MachineThatWasBusy(Machine):
    """A machine that was busy while the draft model was calibrated."""

    def draft_curve(self, n: int) -> float:
        return 30.0 * super().draft_curve(n)

    def draft(self, n: int) -> float:
        return super().draft(n) / 30.0


def test_draft_model_calibrated_on_a_busy_machine() -> None:
    steps = answers(MachineThatWasBusy(Q4_0), partly_right(0.9), lengths=(200,))[1].steps
    assert statistics.mean(bool(step.tree.tokens) for step in steps[20:]) > 0.8


@pytest.mark.parametrize("one", [0.02, 0.06])
def test_busy_spells_do_not_end_drafting(one: float) -> None:
    """Steps of busy spells were once compared with the idle baseline, which ended drafting."""

    def mean() -> float:
        found = []
        for seed in range(1, 5):
            spells = 1 + np.random.default_rng(seed).exponential(8.0, 500).astype(int)
            paces = np.repeat([1.0, 3.0] * 250, spells)
            machine = Machine(Q4_0, one=one, price=0.1, pace=paces.tolist().__getitem__)
            run = answers(machine, partly_right(0.9), lengths=(600,), seed=seed)[1]
            found.append(run.speed_up)
        return statistics.mean(found)

    held = mean()
    with unlimited():
        assert held >= 0.9 * mean()


@pytest.mark.parametrize(
    ("first", "factor", "right", "length"), [(150, 30.0, 0.9, 1500), (8, 5.0, 0.7, 150)]
)
def test_interrupted_pass_is_harmless(first: int, factor: float, right: float, length: int) -> None:
    """As if another program used both cores for a moment, early or late in an answer."""

    def drafted(factor: float) -> float:
        """The share of the steps."""
        machine = Machine(Q4_0, one=0.035, price=0.1)
        machine.pace = lambda passes: factor if passes == first else 1.0
        steps = answers(machine, partly_right(right), lengths=(length,))[1].steps
        return statistics.mean(bool(step.tree.tokens) for step in steps)

    assert drafted(factor) >= 0.8 * drafted(1.0)


@pytest.mark.parametrize("greedy", [True, False])
def test_changing_pace_does_not_end_drafting(greedy: bool) -> None:
    def mean_speed_up(after: float) -> float:
        def run(seed: int) -> float:
            machine = Machine(
                (1, 1.1, 1.5, 1.8, 2.4, 2.8, 3.3, 3.8),
                one=0.08,
                price=0.16,
                pace=lambda passes: 1.0 if passes < 60 else after,
            )
            lengths, text = (60,) * 6, partly_right(0.75)
            return answers(machine, text, lengths=lengths, greedy=greedy, seed=seed)[1].speed_up

        return statistics.mean(map(run, range(4)))

    steady = mean_speed_up(1.0)
    assert steady > 1.25
    for after in (0.25, 4.0):
        assert mean_speed_up(after) > 0.95 * steady


# Whole answers with the real cost curve, on a clock that only passes move. Other tests replace the
# curve or make steps by hand, so effects of the prompt's pass show only here.


SHAPE = [1.0 + 0.5 * n for n in range(16)]


@pytest.mark.parametrize(
    ("model", "levels"), [(False, 0), (True, 99), (True, 0)], ids=["alone", "good", "poor"]
)
@pytest.mark.parametrize("length", [2, 6])
def test_prompts_do_not_change_the_curve(model: bool, levels: int, length: int) -> None:
    """It would change T(1) with each answer, most with short ones."""
    machine, text = Machine(SHAPE), Text(lambda at: levels)
    profile, _ = answers(machine, text, lengths=(length,) * 8, model=model)
    at_present = profile.target.seconds(1, PROMPT) * profile.target.pace
    assert at_present == pytest.approx(machine.one, rel=0.02)
    assert profile.target.pace == pytest.approx(1.0, rel=0.02)
