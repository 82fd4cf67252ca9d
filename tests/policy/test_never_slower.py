"""Never slower: no text, machine or draft makes any stretch of answers take longer than plain
decoding by more than the account allows. What is assumed stands in docs/architecture.md.

No tolerance is fitted. Beyond what the fund holds, a stretch may lose what nobody could know when
it was risked: a single step that takes longer than its curve says (`overrun`), as the loss it is
brings the fund down by as much, and drafting ends until that is made up for; and, where plain
passes alone become cheaper, what is drafted until the next plain pass tells (`UNPROVEN`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.policy.budget import Budget
from tests.policy.adversaries import CALIBRATED, PROMPT, Figures, Machine, Situation, Text, answers
from tests.policy.measuring import OWN, SHAPES
from tests.support.toys import examples

pytestmark = pytest.mark.nightly


def until_trusted(at: Situation) -> int:
    """Right until drafting may risk all there is, then wrong until that is spent."""
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
DEARER: dict[str, Callable[[int, int], float]] = {
    "doubled": lambda n, passes: 2.0 if passes > 60 else 1.0,
    "quadrupled": lambda n, passes: 4.0 if passes > 60 else 1.0,
    "on and off": lambda n, passes: 3.0 if (passes // 15) % 2 else 1.0,
}
WAYS = [(False, True), (True, True), (True, False)]
"""Whether there is a draft model, and whether the answer is greedy."""
LENGTHS: dict[float, list[tuple[int, ...]]] = {0.02: [(400,), (6,) * 25], 0.2: [(300,)]}
"""Answers, by T(1) in seconds."""
UNPROVEN = Budget.EXPOSED
"""Plain passes that may be lost until a plain one tells that they have become cheaper, at most
three times."""


def most(machine: Machine, slowest: float = 1.0) -> float:
    """What the fund may hold."""
    return max(Budget.SECONDS, Budget.PASSES * machine.one * slowest)


def overrun(machine: Machine, run: Figures) -> float:
    """Seconds that some drafted step took longer than the curves say, which were calibrated at the
    pace 1: with a machine k times slower k − 1 times its passes, with dearer ones that of its
    verifying pass, and on a steady machine what lies between two calibrated sizes."""
    longest = 0.0
    for step, sizes in zip(run.steps, run.sizes, strict=True):
        if step.draft.expected_seconds is None:
            continue
        verified = float(np.interp(1 + len(step.tree), *machine.calibrated(CALIBRATED)))
        expected_seconds = verified + sum(machine.draft_curve(size) for size in sizes)
        longest = max(longest, step.target_seconds + step.draft_seconds - expected_seconds)
    return longest


def foreseeable(machine: Machine, run: Figures, slowest: float = 1.0) -> float:
    """Seconds that a stretch may take beyond 1.01 × plain decoding where plain passes cost what is
    known of them.

    localspec's own work is part of it: what a plain step takes of it, planning included, counts as
    plain decoding's, and is known to one look at the clock.
    """
    return most(machine, slowest) + overrun(machine, run) + OWN * sum(run.tokens)


def runs(
    text: str,
    shapes: Sequence[str],
    machine_of: Callable[..., Machine] = Machine,
    *,
    several: bool = False,
    in_turns: bool = False,
) -> Iterator[tuple[tuple[object, ...], Machine, Figures]]:
    """The text on machines of these shapes, in all ways of drafting; with each, what it was."""
    turn = list(TEXTS).index(text)
    ways = enumerate(product(WAYS, LENGTHS.items(), shapes))
    for number, ((model, greedy), (one, lengths), shape) in ways:
        if in_turns and (turn + number // len(shapes) - number) % len(shapes):
            continue
        for length in lengths if several else lengths[:1]:
            machine = machine_of(SHAPES[shape], one=one)
            _, run = answers(machine, TEXTS[text], lengths=length, model=model, greedy=greedy)
            yield (model, greedy, one, shape, len(length)), machine, run


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_text_that_sees_the_draft_costs_the_fund_and_no_more(shape: str, text: str) -> None:
    for at, machine, run in runs(text, [shape], several=True):
        assert run.worst <= foreseeable(machine, run), at


@pytest.mark.parametrize("text", TEXTS)
def test_one_answer_loses_three_plain_passes_and_a_share_of_its_tokens(text: str) -> None:
    """Beyond overruns, and what the draft model reads to catch up with the text."""
    for at, machine, run in runs(text, ["flat", "tiles", "ruinous"]):
        more = [
            sum(machine.draft_curve(size) - machine.draft_curve(1) for size in read)
            for read in run.sizes
        ]
        said = np.cumsum(run.tokens)
        allowed = (3.0 + 0.03 * said) * machine.one + OWN * said + np.maximum.accumulate(more)
        lost = np.cumsum(run.seconds) - np.cumsum(run.plain)
        assert (lost <= allowed + overrun(machine, run)).all(), at


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pace", PACES)
def test_machine_that_changes_its_pace_costs_little_more(pace: str, text: str) -> None:
    changing = partial(Machine, pace=PACES[pace])
    for at, machine, run in runs(text, ["flat", "tiles", "ruinous"], changing, in_turns=True):
        assert run.worst <= foreseeable(machine, run, 3.0), at


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dearer", DEARER)
def test_costs_that_multiply_are_charged_pass_by_pass(dearer: str, text: str) -> None:
    multiplying = partial(Machine, dearer=DEARER[dearer])
    for at, machine, run in runs(text, ["flat", "tiles", "steep"], multiplying, in_turns=True):
        assert run.worst <= foreseeable(machine, run), at


@pytest.mark.parametrize("text", TEXTS)
def test_plain_passes_that_get_cheaper_by_themselves_are_found_out(text: str) -> None:
    """Passes over drafts say nothing of it: they take what they took. A plain one is made before
    what may have been lost meanwhile is more than UNPROVEN plain passes."""
    cheaper = partial(
        Machine,
        pace=lambda passes: 1.0 / 3.0 if passes > 60 else 1.0,
        dearer=lambda n, passes: 3.0 if passes > 60 else 1.0,
    )
    for at, machine, run in runs(text, ["flat", "tiles", "steep"], cheaper, in_turns=True):
        assert run.worst <= foreseeable(machine, run) + UNPROVEN * machine.one, at


@pytest.mark.parametrize("longer", [1.05, 1.08])
def test_plain_passes_that_take_longer_behind_drafts_are_no_measure(longer: float) -> None:
    """Drafts that bring a token each and take nearly two plain passes: by plain passes that stand
    behind drafted steps they would seem to pay, for as long as the text goes on."""
    shape = [1.0, *(1.9 + 0.5 * n for n in range(7))]
    machine = Machine(shape, price=0.02, changed=longer)
    profile, run = answers(machine, TEXTS["one token"], lengths=(1500,))
    assert run.worst <= foreseeable(machine, run)
    there = PROMPT + sum(run.tokens)
    assert profile.target.plain(there) == pytest.approx(machine.one, rel=0.005)


segments = st.lists(
    st.tuples(st.integers(1, 80), st.sampled_from([1.0, 1.1, 1.4, 2.0, 3.0])),
    min_size=1,
    max_size=6,
)
"""(passes, factor), over and over."""
rising = st.lists(st.floats(0.0, 2.0), min_size=7, max_size=7).map(
    lambda more: [1.0, *(np.cumsum(more) + 1.0).tolist()]
)
jagged = st.lists(st.floats(1.0, 6.0), min_size=7, max_size=7).map(lambda more: [1.0, *more])
levels = st.lists(st.sampled_from([0, 0, 1, 2, 3, 99]), min_size=1, max_size=12)
"""Right levels of the drafts, over and over."""
going_on = st.lists(st.booleans(), min_size=1, max_size=12)
ways = st.sampled_from(WAYS)


def repeated(schedule: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    factors = [factor for passes, factor in schedule for _ in range(passes)]
    return lambda passes: factors[passes % len(factors)]


def scripted(right: Sequence[int], undrafted: Sequence[bool]) -> Text:
    return Text(
        lambda at: right[at.drafted % len(right)],
        lambda at: undrafted[at.step % len(undrafted)],
    )


@given(
    rising | jagged,
    st.sampled_from([0.01, 0.05, 0.2]),
    st.floats(0.02, 0.6),
    levels,
    going_on,
    ways,
)
@examples(60)
def test_any_text_on_any_machine(
    shape: list[float],
    one: float,
    price: float,
    right: list[int],
    undrafted: list[bool],
    way: tuple[bool, bool],
) -> None:
    machine = Machine(shape, one=one, price=price)
    text = scripted(right, undrafted)
    _, run = answers(machine, text, lengths=(150,), model=way[0], greedy=way[1])
    assert run.worst <= foreseeable(machine, run)


@given(
    rising | jagged,
    st.sampled_from([0.01, 0.05, 0.2]),
    st.floats(0.02, 0.6),
    levels,
    going_on,
    ways,
    segments,
    segments,
)
@examples(60)
def test_any_text_on_any_machine_whose_costs_change_under_it(
    shape: list[float],
    one: float,
    price: float,
    right: list[int],
    undrafted: list[bool],
    way: tuple[bool, bool],
    pace: list[tuple[int, float]],
    dearer: list[tuple[int, float]],
) -> None:
    factor = repeated(dearer)
    machine = Machine(
        shape, one=one, price=price, pace=repeated(pace), dearer=lambda n, passes: factor(passes)
    )
    text = scripted(right, undrafted)
    _, run = answers(machine, text, lengths=(200,), model=way[0], greedy=way[1])
    slowest = max(factor for _, factor in pace)
    changed = UNPROVEN * one * slowest if slowest > min(factor for _, factor in pace) else 0.0
    assert run.worst <= foreseeable(machine, run, slowest) + changed


def test_noise_costs_nothing_on_top() -> None:
    noise = np.exp(0.2 * np.abs(np.random.default_rng(3).standard_normal(4096)))
    for text in TEXTS.values():
        machine = Machine(SHAPES["tiles"], pace=lambda passes: float(noise[passes % 4096]))
        _, run = answers(machine, text)
        assert run.worst <= foreseeable(machine, run, float(noise.max()))


def test_busy_spells_are_told_apart_from_what_drafting_saved() -> None:
    """Thirty times as slow by turns."""
    told = saved = 0.0
    for seed in range(1, 7):
        spells = 1 + np.random.default_rng(seed).exponential(8.0, 500).astype(int)
        paces = np.repeat([1.0, 30.0] * 250, spells).tolist()
        machine = Machine(SHAPES["flat"], pace=paces.__getitem__)
        profile, run = answers(machine, TEXTS["chance"], lengths=(300,), seed=seed)
        told += profile.budget.saved
        saved += sum(run.plain) - sum(run.seconds)
    assert told == pytest.approx(saved, rel=0.15)


def test_several_answers_share_one_fund() -> None:
    """And a pair that is stored and taken up again begins with what it had."""
    machine = Machine(SHAPES["tiles"])
    # So long that one answer may risk all of it.
    profile, first = answers(machine, TEXTS["right when not drafted"], lengths=(1000,))
    spent = profile.budget.fund
    assert spent is not None
    assert spent < 0.1 * most(machine)
    _, later = answers(
        machine, TEXTS["right when not drafted"], lengths=(100,) * 4, profile=profile
    )
    assert first.worst > 0.8 * most(machine), "what may be risked is used"
    assert later.worst < 0.2 * most(machine)


def test_pair_that_was_never_measured_is_not_slower() -> None:
    for text in TEXTS.values():
        machine = Machine(SHAPES["tiles"])
        _, run = answers(machine, text, calibrated=False)
        assert run.worst <= most(machine) + machine.one


def test_end_of_an_answer_has_no_room_for_a_larger_cheaper_pass() -> None:
    """A draft of two is verified by a pass over four where that is cheaper, and two tokens before
    the end there is no room for that: it costs what three cost."""
    machine = Machine(SHAPES["tiles"], one=0.2)
    _, run = answers(machine, TEXTS["right when not drafted"], lengths=(4,) * 100)
    assert run.worst <= most(machine) + OWN * sum(run.tokens)
