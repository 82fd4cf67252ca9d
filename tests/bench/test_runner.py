"""The order of a run and what it survives, with arms of a script, and localspec's own arms."""

import itertools
from collections import Counter
from typing import Any

import pytest

from localspec import Engine, ModelOptions, Stream
from localspec.bench.arms import AUTO, COLD, LocalspecArm
from localspec.bench.benchmark import WARM_UP_TOKENS, BenchSettings, run
from localspec.bench.samples import Arm, BenchPrompt, Question, Sample
from localspec.drafters.options import Drafting
from localspec.errors import NativeError
from tests.support.sessions import module_pair

PROMPTS = [BenchPrompt(f"{s}-{n}", s, "text") for n in range(2) for s in ("story", "copy")]
"""Suites interleaved, as `load_suites` has them."""


class Scripted(Arm):
    """An arm that logs its calls, and raises `error` at a given answer."""

    command = "none"

    def __init__(
        self, name: str, log: list[str], *, at: int = -1, error: BaseException | None = None
    ) -> None:
        self.name, self._log, self._at, self._error = name, log, at, error
        self._answers = 0

    def generate(self, question: Question) -> Sample:
        if self._error is not None and self._answers == self._at:
            raise self._error
        self._answers += 1
        warms_up = question.max_tokens == WARM_UP_TOKENS
        what = "warms up" if warms_up else f"{question.prompt.id} {question.temperature:g}"
        self._log.append(f"{self.name} {what}")
        return Sample(tokens=10, seconds=1.0)


def outcome(
    *arms: Arm, turns: int = 1, temperatures: tuple[float, ...] = (0.0,)
) -> tuple[list[Sample], dict[str, str]]:
    """The samples and dropped arms of a run."""
    dropped: dict[str, str] = {}
    kept: dict[str, Any] = {"options": ModelOptions(), "prompts": PROMPTS, "groups": ()}
    kept |= {"temperatures": temperatures, "turns": turns, "max_tokens": 99, "seed": 1}
    return [*run(arms, BenchSettings(**kept), dropped)], dropped


def counts(samples: list[Sample]) -> Counter[str]:
    return Counter(sample.arm for sample in samples)


def test_suites_in_order_with_rotating_arms() -> None:
    log: list[str] = []
    samples, dropped = outcome(*(Scripted(name, log) for name in "abc"))
    assert log[:3] == [f"{name} warms up" for name in "abc"]
    asked = [line.split() for line in log if line.endswith(" 0")]
    assert [arm for arm, *_ in asked] == [*"abc", *"bca", *"cab", *"abc"]
    assert [prompt for _, prompt, _ in asked[::3]] == ["story-0", "story-1", "copy-0", "copy-1"]
    assert (len(samples), dropped) == (12, {})
    assert (samples[1].arm, samples[1].prompt) == ("b", "story-0")


def test_turns_cover_all_suites_and_temperatures() -> None:
    log: list[str] = []
    samples, _ = outcome(Scripted("a", log), turns=2, temperatures=(0.0, 0.8))
    suites = [f"{s}-{n}" for s in ("story", "copy") for n in range(2)]
    again = itertools.product(("0", "0.8"), range(2), suites)
    assert log[1:] == [f"a {prompt} {t}" for t, _, prompt in again]
    places = [(s.temperature, s.turn) for s in samples[::4]]
    assert places == [(0.0, 0), (0.0, 1), (0.8, 0), (0.8, 1)]


def test_practice_answers_are_not_counted() -> None:
    log: list[str] = []
    plain, practising = Scripted("a", log), Scripted("b", log)
    practising.practises = True
    samples, _ = outcome(plain, practising, turns=2, temperatures=(0.0, 0.8))
    assert log[2:5] == ["b story-0 0", "b copy-0 0", "a story-0 0"]
    again = log.index("b story-0 0.8")
    assert log[again : again + 3] == ["b story-0 0.8", "b copy-0 0.8", "a story-0 0.8"]
    assert counts(samples) == {"a": 16, "b": 16}
    broken = Scripted("b", [], at=1, error=NativeError("no"))
    broken.practises = True
    samples, dropped = outcome(Scripted("a", []), broken)
    assert (counts(samples), dropped) == ({"a": 4}, {"b": "no"})


def test_arm_of_the_first_turn_only() -> None:
    peer = Scripted("peer", [])
    peer.every_turn = False
    samples, _ = outcome(Scripted("a", []), peer, turns=3)
    asked = {("a", 0), ("a", 1), ("a", 2), ("peer", 0)}
    assert {(sample.arm, sample.turn) for sample in samples} == asked


@pytest.mark.parametrize("error", [NativeError("The pass failed."), ZeroDivisionError()])
@pytest.mark.parametrize("at", [0, 2])
def test_failing_arm_is_dropped(at: int, error: Exception) -> None:
    broken = Scripted("broken", [], at=at, error=error)
    samples, dropped = outcome(Scripted("a", []), broken, Scripted("b", []))
    assert counts(samples) == Counter({"a": 4, "broken": max(at - 1, 0), "b": 4})
    assert dropped == {"broken": str(error) or "ZeroDivisionError"}


# localspec's arms: what they are, and what a sample keeps of an answer's steps.


FOX = BenchPrompt("fox", "story", "<|user|>Tell me a story about a fox.<|end|><|assistant|>")


engine = module_pair(context=512, threads=1)  # two threads on a busy machine wait for each other


def test_sample_counts_add_up(engine: Engine) -> None:
    arm = LocalspecArm(engine, "model", Drafting(drafter="model", depth=3))
    found = [arm.generate(Question(FOX, t, 5, 24)) for t in (0.0, 0.8, 0.8)]
    for sample in found:
        assert len(sample.token_ids) == sample.tokens + 1
        assert sample.passes is not None
        assert sample.accepted is not None
        # Each pass adds a token of the target's own, unless the answer ended among the accepted.
        assert 0 <= sample.passes + sample.accepted - sample.tokens <= 1
    assert found[1].token_ids == found[2].token_ids


@pytest.mark.parametrize(("name", "knows"), [(AUTO, [0, 1, 1]), (COLD, [0, 0, 0])])
def test_memory_of_arms(
    engine: Engine, name: str, knows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arm without stored costs calibrates first; none keeps a prompt for the next one."""
    engine.forget()
    known, stream, streams = [], engine.stream, list[Stream]()

    def asked(*arguments: Any, **options: Any) -> Any:
        known.append(bool(engine.profile.target))
        streams.append(stream(*arguments, **options))
        return streams[-1]

    monkeypatch.setattr(engine, "stream", asked)
    arm = LocalspecArm(engine, name, Drafting())
    for _ in range(3):
        arm.generate(Question(FOX, 0.0, 1, 4))
    assert (known, {each.stats.cached_tokens for each in streams}) == (knows, {0})
