"""Never slower: no stretch of answers takes longer than plain decoding by more than the budget.

No tolerance is fitted. Beyond the fund, a stretch may lose only what was unpredictable: a single
step that takes longer than its curve predicts (`overrun`), after which drafting ends until the loss
is made up for; and drafts until the next plain pass, if plain passes become cheaper (`UNPROVEN`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localspec.policy.budget import Budget
from tests.policy.adversaries import PROMPT, Figures, Machine, Situation, Text, answers
from tests.policy.measuring import OWN, SHAPES
from tests.support.toys import examples

pytestmark = pytest.mark.nightly


def until_trusted(at: Situation) -> int:
    """Right until the fund is full, then wrong until it is empty."""
    if at.fund > 0.95:
        at.memory["wrong"] = 1
    if at.fund < 0.03:
        at.memory["wrong"] = 0
    return 0 if at.memory.get("wrong") else 99


TEXTS = {
    "wrong": Text(lambda at: 0, lambda at: False),
    "right when not drafted": Text(lambda at: 0),
    "right until trusted": Text(until_trusted),
    "by turns": Text(lambda at: 99 if (at.drafted // 20) % 2 == 0 else 0),
    "one token": Text(lambda at: 1),
    "chance": Text(
        lambda at: int(at.random.geometric(0.4)) - 1, lambda at: at.random.random() < 0.6
    ),
    "copies that break off": Text(
        lambda at: 99 if at.step % 40 < 25 else 0, lambda at: at.step % 40 < 25
    ),
}
PACES: dict[str, Callable[[int], float]] = {
    "steady": lambda passes: 1.0,
    "slows": lambda passes: 3.0 if passes > 60 else 1.0,
    "quickens": lambda passes: 1.0 if passes > 60 else 3.0,
    "flickers": lambda passes: 3.0 if passes % 2 else 1.0,
    "changes": lambda passes: 3.0 if (passes // 7) % 2 else 1.0,
}
SLOWER: dict[str, Callable[[int, int], float]] = {
    "doubled": lambda n, passes: 2.0 if passes > 60 else 1.0,
    "quadrupled": lambda n, passes: 4.0 if passes > 60 else 1.0,
    "on and off": lambda n, passes: 3.0 if (passes // 15) % 2 else 1.0,
}
WAYS = [(False, True), (True, True), (True, False)]
"""Whether there is a draft model, and whether the answer is greedy."""
LENGTHS: dict[float, list[tuple[int, ...]]] = {0.02: [(400,), (6,) * 25], 0.2: [(300,)]}
"""Answers, by T(1) in seconds."""
UNPROVEN = Budget.EXPOSED
"""Plain passes that may be lost until a plain one shows that they became three times cheaper."""


def most(machine: Machine, slowest: float = 1.0) -> float:
    return max(Budget.SECONDS, Budget.PASSES * machine.one * slowest)


def overrun(machine: Machine, run: Figures) -> float:
    """The largest excess of a drafted step over the curves, which were calibrated at pace 1: by a
    slower machine, slower verifying passes, or between two calibrated sizes."""
    known, longest = machine.calibrated(), 0.0
    for step, sizes in zip(run.steps, run.sizes, strict=True):
        if step.draft.expected_seconds is None:
            continue
        verified = float(np.interp(1 + len(step.tree), [*known], [*known.values()]))
        expected_seconds = verified + sum(machine.draft_curve(size) for size in sizes)
        longest = max(longest, step.target_seconds + step.draft_seconds - expected_seconds)
    return longest


def allowed_excess(machine: Machine, run: Figures, slowest: float = 1.0) -> float:
    """The allowed seconds over 1.01 × plain decoding of a stretch, if costs of plain passes are
    known. They include localspec's own work, known to one reading of the clock."""
    return most(machine, slowest) + overrun(machine, run) + OWN * sum(run.tokens)


def runs(
    text: str,
    shapes: Sequence[str],
    machine_of: Callable[..., Machine] = Machine,
    *,
    all_lengths: bool = False,
    rotate: bool = False,
) -> Iterator[tuple[tuple[object, ...], Machine, Figures]]:
    """Parameters, machine and figures of the text, on these shapes in all ways of drafting."""
    turn = list(TEXTS).index(text)
    ways = enumerate(product(WAYS, LENGTHS.items(), shapes))
    for number, ((model, greedy), (one, lengths), shape) in ways:
        if rotate and (turn + number // len(shapes) - number) % len(shapes):
            continue
        for length in lengths if all_lengths else lengths[:1]:
            machine = machine_of(SHAPES[shape], one=one)
            _, run = answers(machine, TEXTS[text], lengths=length, model=model, greedy=greedy)
            yield (model, greedy, one, shape, len(length)), machine, run


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_adversarial_text_costs_at_most_the_fund(shape: str, text: str) -> None:
    for at, machine, run in runs(text, [shape], all_lengths=True):
        assert run.worst <= allowed_excess(machine, run), at


@pytest.mark.parametrize("text", TEXTS)
def test_loss_of_one_answer_is_limited(text: str) -> None:
    """To three plain passes and 3%, plus overruns and reading by the draft model."""
    for at, machine, run in runs(text, ["flat", "tiles", "ruinous"]):
        more = [
            sum(machine.draft_curve(size) - machine.draft_curve(1) for size in read)
            for read in run.sizes
        ]
        tokens = np.cumsum(run.tokens)
        allowed = (3.0 + 0.03 * tokens) * machine.one + OWN * tokens + np.maximum.accumulate(more)
        lost = np.cumsum(run.seconds) - np.cumsum(run.plain)
        assert (lost <= allowed + overrun(machine, run)).all(), at


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pace", PACES)
def test_machine_of_changing_pace_costs_little_more(pace: str, text: str) -> None:
    changing = partial(Machine, pace=PACES[pace])
    for at, machine, run in runs(text, ["flat", "tiles", "ruinous"], changing, rotate=True):
        assert run.worst <= allowed_excess(machine, run, 3.0), at


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("slower", SLOWER)
def test_costs_that_multiply_are_charged_pass_by_pass(slower: str, text: str) -> None:
    multiplying = partial(Machine, slower=SLOWER[slower])
    for at, machine, run in runs(text, ["flat", "tiles", "steep"], multiplying, rotate=True):
        assert run.worst <= allowed_excess(machine, run), at


@pytest.mark.parametrize("text", TEXTS)
def test_cheaper_plain_passes_are_detected(text: str) -> None:
    """Verifying passes do not show it, as they cost the same. A plain pass is made before the
    possible loss exceeds UNPROVEN plain passes."""
    cheaper = partial(
        Machine,
        pace=lambda passes: 1.0 / 3.0 if passes > 60 else 1.0,
        slower=lambda n, passes: 3.0 if passes > 60 else 1.0,
    )
    for at, machine, run in runs(text, ["flat", "tiles", "steep"], cheaper, rotate=True):
        assert run.worst <= allowed_excess(machine, run) + UNPROVEN * machine.one, at


@pytest.mark.parametrize("longer", [1.05, 1.08])
def test_slow_plain_passes_after_drafts_are_not_the_baseline(longer: float) -> None:
    """Drafts bring one token and take nearly two plain passes. Compared with the slower plain
    passes after drafted steps they would seem to pay."""
    shape = [1.0, *(1.9 + 0.5 * n for n in range(7))]
    machine = Machine(shape, price=0.02, changed=longer)
    profile, run = answers(machine, TEXTS["one token"], lengths=(1500,))
    assert run.worst <= allowed_excess(machine, run)
    there = PROMPT + sum(run.tokens)
    assert profile.target.plain(there) == pytest.approx(machine.one, rel=0.005)


segments = st.lists(
    st.tuples(st.integers(1, 80), st.sampled_from([1.0, 1.1, 1.4, 2.0, 3.0])),
    min_size=1,
    max_size=6,
)
"""(passes, factor), repeated."""
rising = st.lists(st.floats(0.0, 2.0), min_size=7, max_size=7).map(
    lambda more: [1.0, *(np.cumsum(more) + 1.0).tolist()]
)
jagged = st.lists(st.floats(1.0, 6.0), min_size=7, max_size=7).map(lambda more: [1.0, *more])
levels = st.lists(st.sampled_from([0, 0, 1, 2, 3, 99]), min_size=1, max_size=12)
"""Numbers of right levels of the drafts, repeated."""
continuations = st.lists(st.booleans(), min_size=1, max_size=12)
ways = st.sampled_from(WAYS)


def repeated(schedule: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    factors = [factor for passes, factor in schedule for _ in range(passes)]
    return lambda passes: factors[passes % len(factors)]


def scripted(right: Sequence[int], undrafted: Sequence[bool]) -> Text:
    return Text(
        lambda at: right[at.drafted % len(right)], lambda at: undrafted[at.step % len(undrafted)]
    )


ones = st.sampled_from([0.01, 0.05, 0.2])  # seconds of a plain pass
machines = st.builds(Machine, rising | jagged, ones, st.floats(0.02, 0.6))
texts = st.builds(scripted, levels, continuations)


@given(machines, texts, ways)
# Passes over 7 tokens, never measured, cost five times what their neighbours do.
@example(Machine([1, 1, 1, 1, 1, 1, 5, 1], 0.05, 0.5), scripted([0], [False]), (False, True))
@examples(60)
def test_any_text_on_any_machine(machine: Machine, text: Text, way: tuple[bool, bool]) -> None:
    _, run = answers(machine, text, lengths=(150,), model=way[0], greedy=way[1])
    assert run.worst <= allowed_excess(machine, run)


@given(machines, texts, ways, segments, segments)
@examples(60)
def test_any_text_on_any_machine_of_changing_costs(
    machine: Machine,
    text: Text,
    way: tuple[bool, bool],
    pace: list[tuple[int, float]],
    slower: list[tuple[int, float]],
) -> None:
    one, factor = machine.one, repeated(slower)
    machine.pace, machine.slower = repeated(pace), lambda n, passes: factor(passes)
    _, run = answers(machine, text, lengths=(200,), model=way[0], greedy=way[1])
    slowest = max(factor for _, factor in pace)
    changed = UNPROVEN * one * slowest if slowest > min(factor for _, factor in pace) else 0.0
    assert run.worst <= allowed_excess(machine, run, slowest) + changed


def test_noise_does_not_add_losses() -> None:
    noise = np.exp(0.2 * np.abs(np.random.default_rng(3).standard_normal(4096)))
    for text in TEXTS.values():
        machine = Machine(SHAPES["tiles"], pace=lambda passes: float(noise[passes % 4096]))
        _, run = answers(machine, text)
        assert run.worst <= allowed_excess(machine, run, float(noise.max()))


def test_busy_spells_do_not_distort_the_reported_savings() -> None:
    """The machine is alternately thirty times as slow."""
    reported = saved = 0.0
    for seed in range(1, 7):
        spells = 1 + np.random.default_rng(seed).exponential(8.0, 500).astype(int)
        paces = np.repeat([1.0, 30.0] * 250, spells).tolist()
        machine = Machine(SHAPES["flat"], pace=paces.__getitem__)
        profile, run = answers(machine, TEXTS["chance"], lengths=(300,), seed=seed)
        reported += profile.budget.saved
        saved += sum(run.plain) - sum(run.seconds)
    assert reported == pytest.approx(saved, rel=0.15)


def test_several_answers_share_one_fund() -> None:
    """A later session starts with the stored fund."""
    machine = Machine(SHAPES["tiles"])
    # One answer may risk all of it.
    profile, first = answers(machine, TEXTS["right when not drafted"], lengths=(1000,))
    spent = profile.budget.fund
    assert spent is not None
    assert spent < 0.1 * most(machine)
    _, later = answers(
        machine, TEXTS["right when not drafted"], lengths=(100,) * 4, profile=profile
    )
    assert first.worst > 0.8 * most(machine), "the fund is used"
    assert later.worst < 0.2 * most(machine)


def test_uncalibrated_pair_is_not_slower() -> None:
    for text in TEXTS.values():
        machine = Machine(SHAPES["tiles"])
        _, run = answers(machine, text, calibrated=False)
        assert run.worst <= most(machine) + machine.one


def test_end_of_an_answer_limits_the_size_of_passes() -> None:
    """A draft of two is verified by a pass over four where that is cheaper. Two tokens before the
    end there is no room for it, so it costs a pass over three."""
    machine = Machine(SHAPES["tiles"], one=0.2)
    _, run = answers(machine, TEXTS["right when not drafted"], lengths=(4,) * 100)
    assert run.worst <= most(machine) + OWN * sum(run.tokens)
