"""The figures of a generation, added up from steps made by hand and by the loop."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localspec.decoding.interfaces import PROMPT, TARGET, Draft, Plan
from localspec.decoding.session import Session
from localspec.decoding.stats import DrafterStats, GenerationStats
from localspec.decoding.tree import PADDING, ROOT, TokenTree
from tests.decoding.steps import CYCLE, run, step_of
from tests.support.toys import (
    GREEDY,
    ToySource,
    ToyTarget,
    session_of,
)

PLAN = Plan("model", depth=3)


def branched() -> TokenTree:
    """0 ─ 1 ─ 2 from the model, 3 and 4 from the n-gram: 3 beside 0, 4 beside 1."""
    tree = TokenTree()
    node = tree.add(5, ROOT, "model")
    node = tree.add(6, node, "model")
    tree.add(7, node, "model")
    tree.add(8, ROOT, "ngram")
    tree.add(9, 0, "ngram")
    return tree


def test_tokens_are_counted_by_drafter_and_by_position() -> None:
    stats = GenerationStats()
    stats.add(step_of(PROMPT))
    stats.add(step_of(PLAN, branched(), path=[0, 4], tests=[0, 1, 4]))
    stats.add(step_of(PLAN, branched(), path=[0, 1, 2], tests=[0, 1, 2]))
    stats.add(step_of(PLAN, branched(), path=[3], tests=[0, 3]))
    assert (stats.drafted, stats.tested, stats.accepted) == (15, 8, 6)
    assert (stats.generated_tokens, stats.target_passes) == (1 + 3 + 4 + 2, 4)
    assert stats.acceptance_rate == pytest.approx(6 / 8)
    assert stats.tokens_per_pass == pytest.approx(10 / 4)
    assert stats.by_drafter == {
        "model": DrafterStats(
            9, 6, 4, accepted_per_position=[2, 1, 1], tested_per_position=[3, 2, 1]
        ),
        "ngram": DrafterStats(6, 2, 2, accepted_per_position=[1, 1], tested_per_position=[1, 1]),
    }
    assert stats.tested_per_position == [4, 3, 1]
    assert stats.accepted_per_position == [3, 2, 1]
    figures = json.loads(json.dumps(stats.as_dict()))
    assert figures["acceptance_rate"] == stats.acceptance_rate
    assert figures["by_drafter"]["ngram"]["tested_per_position"] == [1, 1]


def test_seconds_of_the_prompt_and_of_decoding_are_kept_apart() -> None:
    stats = GenerationStats()
    stats.add(step_of(PROMPT, seconds=(9.0, 8.0, 0.0)))
    stats.add(step_of(PLAN, branched(), path=[0], tests=[0, 1, 4], seconds=(4.0, 2.0, 1.5)))
    stats.add(step_of(Plan(None, reason="none"), seconds=(2.0, 1.75, 0.0)))
    assert stats.prompt_seconds == 9.0
    assert stats.decode_seconds == 6.0
    assert stats.verify_seconds == 3.75
    assert stats.draft_seconds == 1.5
    assert stats.overhead_seconds == pytest.approx(0.75)
    assert stats.tokens_per_second == pytest.approx(3 / 6.0), "the prompt's token is left out"


def test_reasons_are_counted_where_nothing_was_drafted() -> None:
    stats = GenerationStats()
    for plan in (PROMPT, Plan(None, reason="resting"), Plan(None, reason="resting")):
        stats.add(step_of(plan))
    stats.add(step_of(PLAN)._replace(draft=Draft(TokenTree(), "the model is speechless")))
    stats.add(step_of(PLAN, branched(), path=[], tests=[0, 3]))
    assert stats.reasons == {"resting": 2, "the model is speechless": 1}
    assert stats.drafted == 5


# Padding.


def padded() -> TokenTree:
    """As `branched`, with 5 below 2 and 6 below 3 as padding."""
    tree = branched()
    tree.pad(10, 2)
    tree.pad(11, 3)
    return tree


@pytest.mark.parametrize(
    ("path", "tests"),
    [([0, 1, 2, 5], [0, 1, 2, 5]), ([3, 6], [0, 3, 6]), ([0, 1, 2], [0, 1, 2, 5]), ([3], [0, 3])],
    ids=["accepted", "accepted beside", "rejected", "untested"],
)
def test_padding_counts_as_nothing(path: list[int], tests: list[int]) -> None:
    """All figures are those of the same tree without it; only the text is longer by its luck."""
    padding = {5, 6}
    bare = step_of(
        PLAN,
        branched(),
        path=[node for node in path if node not in padding],
        tests=[node for node in tests if node not in padding],
    )
    step = step_of(PLAN, padded(), path=path, tests=tests)
    found, wanted = GenerationStats(), GenerationStats()
    found.add(step)
    wanted.add(bare)
    luck = len(step.tokens) - len(bare.tokens)
    assert found == replace(wanted, generated_tokens=wanted.generated_tokens + luck)
    assert (found.drafted, found.tested, found.accepted) == (5, len(bare.tests), len(bare.path))
    assert (step.drafted, step.tested, step.accepted) == (5, len(bare.tests), len(bare.path))
    assert PADDING not in found.by_drafter
    assert TARGET not in found.by_drafter


def test_padding_that_is_accepted_by_luck_is_the_targets() -> None:
    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        tree.pad(2, tree.pad(1, tree.add(0, tree.add(2, ROOT, "toy"), "toy")))

    session = session_of([0], size=3, params=GREEDY, count=13)
    step = run(session, ToyTarget(CYCLE), ToySource(propose), Plan("toy", depth=2))[1]
    assert (step.tokens, step.path) == ([2, 0, 1, 2, 0], [0, 1, 2, 3])
    assert step.sources == ["toy", "toy", TARGET, TARGET, TARGET]
    assert step.tree.sources == ["toy", "toy", PADDING, PADDING]
    assert (step.drafted, step.tested, step.accepted) == (2, 2, 2)
