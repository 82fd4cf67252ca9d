"""The order of a run, and what it survives, with arms that follow a script."""

from __future__ import annotations

import pytest

from localspec.bench.runner import WARM_UP_TOKENS, RunOutcome, run
from localspec.bench.samples import Arm, BenchPrompt, Sample
from localspec.errors import NativeError
from tests.bench.samples import sample

PROMPTS = [BenchPrompt(f"{s}-{n}", s, "text") for n in range(2) for s in ("story", "copy")]
"""Suites interleaved, as `load_suites` has them."""


class Scripted:
    """Notes what it is asked for; fails or is interrupted at a given answer."""

    family = "scripted"
    command = "none"

    def __init__(
        self, name: str, log: list[str], *, at: int = -1, error: BaseException | None = None
    ) -> None:
        self.name = name
        self._log, self._at, self._error = log, at, error
        self._answers = 0

    def begin_turn(self) -> None:
        self._log.append(f"{self.name} begins")

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        if self._error is not None and self._answers == self._at:
            raise self._error
        self._answers += 1
        what = "warms up" if max_tokens == WARM_UP_TOKENS else f"{prompt.id} {temperature:g} {turn}"
        self._log.append(f"{self.name} {what}")
        return sample(self.name, prompt.suite, prompt.id, temperature=temperature, turn=turn)

    def close(self) -> None:
        raise AssertionError("whoever opened it closes it")


def outcome(*arms: Arm, turns: int = 1, temperatures: tuple[float, ...] = (0.0,)) -> RunOutcome:
    return run(arms, PROMPTS, temperatures, turns=turns, max_tokens=99, seed=1)


def test_suites_one_by_one_and_who_is_first_rotates() -> None:
    log: list[str] = []
    found = outcome(*(Scripted(name, log) for name in "abc"))
    assert log[:3] == [f"{name} warms up" for name in "abc"]
    assert log[3:6] == [f"{name} begins" for name in "abc"]
    order = [line.split()[0] for line in log if line.endswith(" 0 0")]
    assert order == [*"abc", *"bca", *"cab", *"abc"]
    prompts = [line.split()[1] for line in log if line.endswith(" 0 0")]
    assert prompts[::3] == ["story-0", "story-1", "copy-0", "copy-1"]
    assert len(found.samples) == 12
    assert (found.partial, found.dropped) == (False, {})


def test_a_turn_goes_through_all_suites_at_every_temperature() -> None:
    log: list[str] = []
    outcome(Scripted("a", log), turns=2, temperatures=(0.0, 0.8))
    assert log[1:] == [
        line
        for temperature in ("0", "0.8")
        for turn in range(2)
        for line in (
            "a begins",
            *(f"a {s}-{n} {temperature} {turn}" for s in ("story", "copy") for n in range(2)),
        )
    ]


def test_who_practises_answers_a_prompt_of_each_suite_that_does_not_count() -> None:
    log: list[str] = []
    found = run(
        [Scripted("a", log), Scripted("b", log)],
        PROMPTS,
        [0.0, 0.8],
        turns=2,
        max_tokens=99,
        seed=1,
        practises=lambda arm: arm.name == "b",
    )
    first = log.index("a begins")
    assert log[2:first] == ["b story-0 0 0", "b copy-0 0 0"]
    again = log.index("b story-0 0.8 0")
    assert log[again : again + 3] == ["b story-0 0.8 0", "b copy-0 0.8 0", "a begins"]
    assert {name: sum(s.arm == name for s in found.samples) for name in "ab"} == {"a": 16, "b": 16}


def test_an_arm_that_fails_at_its_practice_is_dropped() -> None:
    broken = Scripted("b", [], at=1, error=NativeError("no"))
    found = run(
        [Scripted("a", []), broken],
        PROMPTS,
        [0.0],
        turns=1,
        max_tokens=99,
        seed=1,
        practises=lambda arm: arm.name == "b",
    )
    assert found.dropped == {"b": "no"}
    assert {sample.arm for sample in found.samples} == {"a"}


def test_an_arm_may_take_part_in_fewer_turns() -> None:
    arms = [Scripted("a", []), Scripted("peer", [])]
    found = run(
        arms,
        PROMPTS,
        [0.0],
        turns=3,
        max_tokens=99,
        seed=1,
        turns_of=lambda arm: 1 if arm.name == "peer" else 3,
    )
    turns = {name: {s.turn for s in found.samples if s.arm == name} for name in ("a", "peer")}
    assert turns == {"a": {0, 1, 2}, "peer": {0}}


@pytest.mark.parametrize("at", [0, 2])
def test_a_failing_arm_is_dropped_and_the_others_go_on(at: int) -> None:
    broken = Scripted("broken", [], at=at, error=NativeError("The pass failed."))
    found = outcome(Scripted("a", []), broken, Scripted("b", []))
    counts = {name: sum(s.arm == name for s in found.samples) for name in ("a", "broken", "b")}
    assert counts == {"a": 4, "broken": max(at - 1, 0), "b": 4}
    assert found.dropped == {"broken": "The pass failed."}
    assert not found.partial


def test_an_error_without_words_is_named() -> None:
    found = outcome(Scripted("broken", [], at=0, error=ZeroDivisionError()))
    assert found.dropped == {"broken": "ZeroDivisionError"}
    assert found.samples == []


@pytest.mark.parametrize(("at", "left"), [(0, 0), (3, 5)])
def test_an_interrupt_keeps_what_there_is(at: int, left: int) -> None:
    interrupted = Scripted("b", [], at=at, error=KeyboardInterrupt())
    found = outcome(Scripted("a", []), interrupted)
    assert found.partial
    assert found.dropped == {}
    assert len(found.samples) == left


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int, str]] = []
    arms = [Scripted("a", []), Scripted("broken", [], at=1, error=NativeError("no"))]
    run(
        arms,
        PROMPTS,
        [0.0, 0.8],
        turns=1,
        max_tokens=99,
        seed=1,
        progress=lambda *what: seen.append(what),
    )
    assert seen[0] == (0, 16, "warming up a")
    assert seen[-1] == (7, 8, "T = 0.8 · copy · turn 1 · a")


def test_nothing_to_do() -> None:
    assert run([], PROMPTS, [0.0], turns=1, max_tokens=9, seed=1).samples == []
    assert run([Scripted("a", [])], [], [0.0], turns=1, max_tokens=9, seed=1).samples == []
