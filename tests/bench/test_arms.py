"""localspec's arms: what they are, and what a sample keeps of an answer's steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import localspec
from localspec import Engine, ModelOptions
from localspec.bench.arms import LocalspecArm, Memory, localspec_arms
from localspec.bench.samples import BenchPrompt
from localspec.cli.bench import ARMS
from localspec.drafters.options import Drafting
from localspec.drafters.registry import REGISTRY

FOX = BenchPrompt("fox", "story", "<|user|>Tell me a story about a fox.<|end|><|assistant|>")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The embedded pair on one thread: two on a busy machine wait for each other."""
    with localspec.load(options=ModelOptions(context=512, threads=1)) as pair:
        yield pair


def test_all_groups(engine: Engine) -> None:
    arms = localspec_arms(engine, ARMS)
    depths = [f"model depth {depth}" for depth in range(1, 9)]
    trees = ["model depth 3 width 2", "arg-max depth 3"]
    names = [
        *("plain", "planner", "planner, first session", "planner, cold"),
        # Nothing was learned, and there is no trained head.
        *(
            n
            for n, one in REGISTRY.items()
            if not one.needs_datastore and not one.needs_head and n != "grammar"
        ),
        *(*depths, *trees),
    ]
    assert [arm.name for arm in arms] == names
    assert arms[-2].command.endswith("--drafter model --depth 3 --width 2")
    assert arms[-1].command.endswith("--drafter model --depth 3 --greedy-drafts")


def test_a_sample_adds_up(engine: Engine) -> None:
    arm = LocalspecArm(engine, "model", Drafting(drafter="model", depth=3))
    found = [arm.generate(FOX, temperature=t, seed=5, max_tokens=24) for t in (0.0, 0.8, 0.8)]
    for sample in found:
        assert len(sample.token_ids) == sample.tokens + 1
        assert sample.passes is not None
        assert sample.accepted is not None
        # Each pass adds a token of the target's own, unless the answer ended among the accepted.
        assert 0 <= sample.passes + sample.accepted - sample.tokens <= 1
        parts = (sample.draft_seconds, sample.verify_seconds, sample.overhead_seconds)
        assert sum(part or 0.0 for part in parts) == pytest.approx(sample.seconds)
    assert found[1].token_ids == found[2].token_ids


@pytest.mark.parametrize(
    ("memory", "calibrates"),
    [
        (Memory.KEEPS, [True, False, False, False]),
        (Memory.BEGINS, [True, False, True, False]),
        (Memory.FORGETS, [True, True, True, True]),
    ],
)
def test_who_forgets_when(
    engine: Engine, memory: Memory, calibrates: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known is measured before the answer: two turns of two answers."""
    engine.forget()
    known, stream = [], engine.stream

    def asked(*arguments: Any, **options: Any) -> Any:
        known.append(bool(engine.profile.target))
        return stream(*arguments, **options)

    monkeypatch.setattr(engine, "stream", asked)
    arm = LocalspecArm(engine, "planner", Drafting(), memory=memory)
    for _ in range(2):
        arm.begin_turn()
        for _ in range(2):
            arm.generate(FOX, temperature=0.0, seed=1, max_tokens=4)
    assert known == [not unknown for unknown in calibrates]
