"""Lookahead decoding: n-grams made beside the target's passes never change what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import speculate
from localspec.decoding.rules import BestLossless
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.composition import compose
from localspec.drafters.lookahead import KEPT, LookaheadSource, WindowPlace
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.policy.profile import PairProfile
from tests.decoding.exact import EXACT, gap, generate, texts
from tests.policy.measuring import profile_of
from tests.support.toys import (
    GREEDY,
    START,
    EnumeratingSource,
    Follows,
    ToyModel,
    ToyTarget,
    enumerate_outcomes,
    session_of,
    started,
)

CYCLE = 40
AROUND = Follows({token: ((token * 21 + 3) % CYCLE, 0.97) for token in range(CYCLE)}, CYCLE)
"""Says all tokens in a circle, so that nothing repeats for as many."""
FREE = [1.0 + 0.001 * n for n in range(64)]
"""T(n)/T(1) where rows cost next to nothing."""


def passes(
    source: LookaheadSource,
    model: ToyModel,
    text: Sequence[int],
    count: int,
    shape: tuple[int, int],
) -> list[TokenTree]:
    """Passes over windows alone, behind a text that stays as it is."""
    session = session_of(text, size=model.size)
    trees = []
    for _ in range(count):
        tree = TokenTree()
        source.open_window(session, tree, *shape)
        paths = [[*text, *tree.path_tokens(node)] for node in (ROOT, *range(len(tree)))]
        source.verified(model.logits(paths))
        trees.append(tree)
    return trees


def test_a_window_is_a_trunk_with_a_branch_at_each_column() -> None:
    source = LookaheadSource()
    *_, full = passes(source, AROUND, [1, 2, 30, 14, 9], 4, (4, 3))
    assert len(full) == 12
    assert full.proposed == 0, "all of it is padding"
    assert full.path(full.tip())[:4] == [0, 1, 2, 3][: len(full.path(full.tip())[:4])]
    assert 1 + max(numbers[-1] for numbers in full.leaf_numbers()) == 4
    assert sorted(full.depths) == [1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6]


def test_its_ngrams_are_what_the_target_says() -> None:
    """Where only the last token tells what follows, one is right as soon as it is made."""
    source = LookaheadSource()
    text = [1, 2, 30, 14, 9]
    passes(source, AROUND, text, 8, (4, 3))
    made = 0
    for token in range(CYCLE):
        for follower, *_ in source.expected(source.place(session_of([token], size=CYCLE))):
            assert follower == (token * 21 + 3) % CYCLE
            token, made = follower, made + 1
    assert made > 20


def test_another_size_begins_a_new_window() -> None:
    source = LookaheadSource()
    text = [1, 2, 30, 14, 9]
    passes(source, AROUND, text, 5, (4, 3))
    (tree,) = passes(source, AROUND, text, 1, (2, 2))
    assert len(tree) == 2


def test_rows_are_read_of_its_own_window_only() -> None:
    source = LookaheadSource()
    session = session_of([1, 2, 3], size=CYCLE)
    source.open_window(session, TokenTree(), 3, 2)
    source.begin([1, 2, 3])
    source.verified(np.zeros((1, CYCLE), np.float32))  # of a plain pass, with one row
    tree = TokenTree()
    source.open_window(session, tree, 3, 2)
    assert len(tree) == 3, "nothing was taken for a level"


def test_what_is_proposed_is_not_added_again() -> None:
    source, session = LookaheadSource(), session_of([5, 6, 7], size=CYCLE)
    first, tree = TokenTree(), TokenTree()
    source.open_window(session, first, 3, 2)
    node = tree.add(first.tokens[0], ROOT, "ngram")
    source.begin([5, 6, 7])
    source.open_window(session, tree, 3, 2)
    assert tree.tokens == first.tokens
    assert tree.parents[1] == node
    assert tree.proposed == 1


def test_guesses_that_run_into_one_another_are_replaced() -> None:
    """After 0, 1 and 2 this target says what it has said: 5 for ever."""
    stuck = Follows(dict.fromkeys(range(10), (5, 0.97)), 10)
    source = LookaheadSource()
    trees = passes(source, stuck, [0, 1, 2, 3, 4, 6, 7], 9, (3, 2))
    assert {len(set(tree.tokens[:3])) for tree in trees} == {3}


def test_what_the_target_said_last_comes_first() -> None:
    """However often it said something else before; n-grams made again are as new as any."""
    source = LookaheadSource()
    for ngram in ((1, 2, 3), (1, 2, 3), (1, 2, 4), (1, 5, 6)):
        source._learn(ngram)
    assert [each.token for each in source.expected(WindowPlace(1))] == [5, 6]
    assert [token for token, _ in source.others(WindowPlace(1), 9)] == [5, 2]
    assert source.follow(WindowPlace(1), 2) == WindowPlace(2, (4,))
    source._learn((1, 2, 3))
    assert [each.token for each in source.expected(WindowPlace(1))] == [2, 3]
    assert source.follow(WindowPlace(1), 2) == WindowPlace(2, (3,))
    # The one that was made again is not the first to go.
    for token in range(10, 10 + KEPT - 1):
        source._learn((1, token, token))
    assert source.follow(WindowPlace(1), 2) == WindowPlace(2, (3,))
    assert source.follow(WindowPlace(1), 5) == WindowPlace(5)


def test_another_text_begins_with_an_empty_pool() -> None:
    source = LookaheadSource()
    source._learn((1, 2, 3))
    source.begin([7, 1])
    assert not list(source.expected(WindowPlace(1)))


def test_few_ngrams_of_one_token_are_kept() -> None:
    source = LookaheadSource()
    for n in range(20):
        source._learn((1, n, n))
    found = source.others(source.place(session_of([1], size=30)), 20)
    assert [token for token, _ in found] == list(range(19, 19 - KEPT, -1))


def around(drafting: Drafting, profile: PairProfile, count: int = 200) -> list[Step]:
    """The steps of a greedy text that goes in circles, its prompt spread over them."""
    target = ToyTarget(AROUND, capacity=1_000)
    planner, drafter = compose(
        drafting, Parts(), profile, target.limits, greedy=True, trees=True, cannot=None
    )
    session = session_of(range(0, CYCLE, 4), size=CYCLE, params=GREEDY, count=count)
    drafter.begin(session.context)
    requests = speculate(session, drafter, planner, GreedyMatch())
    steps = list(drive(session, requests, target))
    text = session.context
    said = text[CYCLE // 4 - 1 :]
    assert all(b == (a * 21 + 3) % CYCLE for a, b in pairwise(said))
    return steps


def accepted(steps: Sequence[Step]) -> int:
    return sum(step.sources.count("lookahead") for step in steps)


def test_by_name_it_is_right_before_anything_repeats() -> None:
    steps = around(Drafting(drafter="lookahead"), profile_of(FREE, None), CYCLE - 1)
    assert accepted(steps) > 10
    assert len(steps) < 25, "of 39 tokens"


TEXT = (0, 1, START)
MODEL = started([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])


@pytest.mark.parametrize("width", [1, 2])
def test_sampled_text_is_the_targets(width: int) -> None:
    """All outcomes, enumerated; its n-grams and its window are right or wrong."""
    drafting = Drafting(drafter="lookahead", depth=2, width=width)
    rule, seen = BestLossless(), {"proposed": 0, "padded": 0}

    def once(random: EnumeratingSource) -> tuple[int, ...]:
        profile, target = profile_of(FREE, None), ToyTarget(MODEL)
        planner, drafter = compose(
            drafting, Parts(), profile, target.limits, greedy=False, trees=True, cannot=None
        )
        text = generate(random, MODEL, drafter, planner, rule, prompt=TEXT, count=5, target=target)
        seen["proposed"] += sum(tree.sources.count("lookahead") for tree in target.trees)
        seen["padded"] += sum(tree.sources.count("padding") for tree in target.trees)
        return text

    assert gap(enumerate_outcomes(once), texts(MODEL, TEXT, 5)) < EXACT
    assert min(seen.values()) > 10


def test_a_target_without_branches_refuses_it() -> None:
    target = ToyTarget(MODEL)
    for trees in (True, False):
        limits = replace(target.limits, max_leaves=1) if trees else target.limits
        with pytest.raises(UsageError, match=r"several continuations per pass.*Choose another"):
            compose(
                Drafting(drafter="lookahead"),
                Parts(),
                profile_of(FREE, None),
                limits,
                greedy=True,
                trees=trees,
                cannot=None,
            )


def test_an_engine_counts_it(engine: Engine) -> None:
    """That it says the same stands in tests/engine/test_greedy_equality.py."""
    found = engine.generate(
        "Once upon a time",
        max_tokens=200,
        sampling=SamplingParams(temperature=0),
        drafting=Drafting(drafter="lookahead", width=4),
    )
    counted = found.stats.by_drafter["lookahead"]
    assert 0 < counted.accepted <= counted.tested <= counted.drafted
    assert found.stats.target_passes < 195
