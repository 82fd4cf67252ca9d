"""The number of verified candidates, compared with all possible trees."""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.draft_builder import DraftBuilder
from localspec.policy.worth import Worth
from tests.policy.measuring import SHAPES, UNIT, profile_of
from tests.support.toys import session_of

MOST = 7
RATES = (0.6, 1.0, 1.7)  # tokens per plain pass


def grown(worth: Worth, rng: np.random.Generator, count: int) -> DraftBuilder:
    """Random candidates; siblings share the probability of their parent."""
    builder = DraftBuilder(session_of([0]), (), worth, depth=MOST, leaves=16, drawn=False)
    for token in range(count):
        parent = [builder.root, *builder.candidates][int(rng.integers(0, token + 1))]
        builder._add(token, parent, "any", None, (), float(rng.uniform(0.05, 0.95)))
    return builder


def closed_sets(builder: DraftBuilder) -> Iterator[list[float]]:
    """Path probabilities of every set of candidates that contains their parents."""
    for chosen in product((False, True), repeat=len(builder.candidates)):
        kept = [one for one, keep in zip(builder.candidates, chosen, strict=True) if keep]
        if all(one.parent in (builder.root, *kept) for one in kept):
            yield [one.reach for one in kept]


def value(worth: Worth, of: Sequence[float]) -> float:
    """The worth, in tokens, of a pass over candidates of these path probabilities."""
    return 1.0 + sum(of) - worth.rate * worth.seconds[len(of) + 1]


def kept(builder: DraftBuilder, tree: TokenTree) -> list[int]:
    """Numbers of the candidates in the tree. Checks their parents."""
    for node, token in enumerate(tree.tokens):
        parent = tree.parents[node]
        above = builder.root if parent == ROOT else builder.candidates[tree.tokens[parent]]
        assert above is builder.candidates[token].parent
    return list(tree.tokens)


@pytest.mark.parametrize("rate", RATES)
def test_selected_tree_is_the_best_affordable_one(rate: float) -> None:
    """With random costs. The allowed excess over a plain pass falls with every draft pass."""
    for seed in range(60):
        rng = np.random.default_rng([seed, 8])
        costs = (np.cumsum(rng.uniform(-0.6, 1.0, MOST + 1)).clip(0.2) + 1.0).tolist()
        seconds = profile_of(costs).verifying(0, MOST)
        spare, spent = float(rng.uniform(0.0, 3.0)) * UNIT, float(rng.uniform(0.0, 0.5)) * UNIT
        worth = Worth(seconds, rate / UNIT, spare)
        worth.spend(spent)
        builder = grown(worth, rng, 7)
        every = [one.reach for one in builder.candidates]

        def covered(
            count: int, seconds: list[float] = seconds, most: float = spare - spent
        ) -> bool:
            return not count or seconds[count + 1] - seconds[1] <= most

        sets = [chosen for chosen in closed_sets(builder) if covered(len(chosen))]
        best = max(value(worth, chosen) for chosen in sets)
        found = kept(builder, builder.select(None))
        assert covered(len(found))
        assert value(worth, [every[n] for n in found]) == pytest.approx(best, abs=1e-9)
        for count in range(1, MOST + 1):
            assert worth.affords(0.0, count) == covered(count)


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_granted_number_of_candidates_is_verified(granted: int) -> None:
    """If several answers share a pass: the likeliest candidates with their parents."""
    worth = Worth(profile_of(SHAPES["flat"]).verifying(0, MOST), 1.0 / UNIT, math.inf)
    for seed in range(50):
        builder = grown(worth, np.random.default_rng([seed, 13]), 6)
        every = [one.reach for one in builder.candidates]
        assert builder.bid().reaches == sorted(every, reverse=True)
        found = kept(builder, builder.select(granted))
        assert sorted(found) == sorted(np.argsort(every)[::-1][:granted].tolist())
