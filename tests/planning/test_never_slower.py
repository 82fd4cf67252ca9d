"""Never slower: no text, machine or draft makes any stretch of answers take longer than plain
decoding by more than the account allows. What is assumed stands in docs/architecture.md."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from localspec.planning.account import Account
from tests.planning.adversaries import Machine, Situation, Text, answers
from tests.planning.measuring import SHAPES


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
WAYS = [(None, True), ("chain", True), ("tree", True), ("chain", False)]
"""Draft model, and whether the answer is greedy."""
LENGTHS: dict[float, list[tuple[int, ...]]] = {0.02: [(400,), (6,) * 25], 0.2: [(300,)]}
"""Answers, by T(1) in seconds."""


def most(machine: Machine, slowest: float = 1.0) -> float:
    """What the fund may hold."""
    return max(Account.SECONDS, Account.PASSES * machine.one * slowest)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_text_that_sees_the_draft_costs_the_fund_and_no_more(shape: str, text: str) -> None:
    """Tolerance: a plain pass."""
    for model, greedy in WAYS:
        for one, lengths in LENGTHS.items():
            for length in lengths:
                machine = Machine(SHAPES[shape], one=one)
                _, run = answers(machine, TEXTS[text], lengths=length, model=model, greedy=greedy)
                assert run.worst <= most(machine) + one, (model, greedy, one)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pace", PACES)
def test_machine_that_changes_its_pace_costs_little_more(pace: str, text: str) -> None:
    """Tolerance: six plain passes at the slowest pace. A draft that was covered is verified by a
    pass that takes three times as long, once; and two plain passes tell that one slow one was no
    hiccup."""
    for model, greedy in WAYS:
        for one, lengths in LENGTHS.items():
            for shape in ("flat", "tiles", "ruinous"):
                machine = Machine(SHAPES[shape], one=one, pace=PACES[pace])
                _, run = answers(
                    machine, TEXTS[text], lengths=lengths[0], model=model, greedy=greedy
                )
                limit = most(machine, 3.0) + 6 * 3.0 * one
                assert run.worst <= limit, (model, greedy, one, shape)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("dearer", DEARER)
def test_costs_that_multiply_are_charged_pass_by_pass(dearer: str, text: str) -> None:
    """Tolerance: 14 plain passes. A single pass over a draft of the tiled curve takes 5.1 more than
    its curve says once costs have quadrupled; where they come and go, that happens again."""
    for model, greedy in WAYS:
        for one, lengths in LENGTHS.items():
            for shape in ("flat", "tiles", "steep"):
                machine = Machine(SHAPES[shape], one=one, dearer=DEARER[dearer])
                _, run = answers(
                    machine, TEXTS[text], lengths=lengths[0], model=model, greedy=greedy
                )
                assert run.worst <= most(machine) + 14 * one, (model, greedy, one, shape)


@pytest.mark.parametrize("text", TEXTS)
def test_plain_passes_that_get_cheaper_by_themselves_are_found_out(text: str) -> None:
    """Passes over drafts say nothing of it: they take what they took. A plain one is made every 32
    passes at least, and what drafts seemed to save since the last one is put right. Tolerance: 20
    plain passes."""
    for model, greedy in WAYS:
        for shape in ("flat", "tiles", "steep"):
            machine = Machine(
                SHAPES[shape],
                pace=lambda passes: 1.0 / 3.0 if passes > 60 else 1.0,
                dearer=lambda n, passes: 3.0 if passes > 60 else 1.0,
            )
            _, run = answers(machine, TEXTS[text], model=model, greedy=greedy)
            assert run.worst <= most(machine) + 20 * machine.one, (model, greedy, shape)


def test_noise_costs_nothing_on_top() -> None:
    noise = np.exp(0.2 * np.abs(np.random.default_rng(3).standard_normal(4096)))
    for text in TEXTS.values():
        machine = Machine(SHAPES["tiles"], pace=lambda passes: float(noise[passes % 4096]))
        _, run = answers(machine, text)
        assert run.worst <= most(machine, float(noise.max())) + 4 * machine.one


def test_several_answers_share_one_fund() -> None:
    """And a pair that is stored and taken up again begins with what it had."""
    machine = Machine(SHAPES["tiles"])
    profile, first = answers(machine, TEXTS["right when not drafted"])
    spent = profile.account.fund
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


@pytest.mark.parametrize("shape", ["flat", "tiles", "steep"])
@pytest.mark.parametrize(("model", "greedy"), WAYS)
def test_drafts_that_are_right_are_not_held_back(
    shape: str, model: str | None, greedy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speed_up() -> float:
        machine = Machine(SHAPES[shape])
        return answers(machine, Text(lambda at: 99), lengths=(600,), model=model, greedy=greedy)[
            1
        ].speed_up

    held = speed_up()
    monkeypatch.setattr(Account, "open", lambda self, plain: math.inf)
    monkeypatch.setattr("localspec.planning.costs.CostCurve.OVERDUE", 10**9)
    free = speed_up()
    assert free > 1.15
    assert held >= 0.97 * free
