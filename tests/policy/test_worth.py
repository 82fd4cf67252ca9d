"""How much is verified of a step's candidates, against trying every possible tree."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.draft_builder import DraftBuilder
from localspec.policy.worth import FARTHEST, Worth
from tests.policy.measuring import SHAPES, UNIT, profile_of
from tests.support.toys import session_of

MOST = 7
RATES = (0.6, 1.0, 1.7)  # tokens per plain pass to be had


def worth_of(
    seconds: Sequence[float], *, rate: float = 1.0, spare: float = math.inf, firm: bool = False
) -> Worth:
    return Worth(seconds, rate / UNIT, spare, firm=firm)


def shaped(shape: str) -> list[float]:
    return profile_of(SHAPES[shape]).verifying(0, MOST)


def grown(worth: Worth, rng: np.random.Generator, count: int, leaves: int = 16) -> DraftBuilder:
    """Random candidates; what is left for a sibling is what its elders leave."""
    builder = DraftBuilder(session_of([0]), (), worth, depth=MOST, leaves=leaves, drawn=False)
    for token in range(count):
        parent = [builder.root, *builder.candidates][int(rng.integers(0, token + 1))]
        builder._add(token, parent, "any", None, (), float(rng.uniform(0.05, 0.95)))
    return builder


def closed_sets(builder: DraftBuilder) -> Iterator[list[float]]:
    """The path probabilities of every choice of candidates that holds the parent of each."""
    for chosen in product((False, True), repeat=len(builder.candidates)):
        kept = [one for one, keep in zip(builder.candidates, chosen, strict=True) if keep]
        if all(one.parent in (builder.root, *kept) for one in kept):
            yield [one.reach for one in kept]


def value(worth: Worth, of: Sequence[float]) -> float:
    """Tokens that a pass over candidates of these path probabilities is worth."""
    return 1.0 + sum(of) - worth.rate * worth.seconds[len(of) + 1]


def kept(builder: DraftBuilder, tree: TokenTree) -> list[int]:
    """Candidates of the tree; the token of each is its number. None without its parent."""
    for node, token in enumerate(tree.tokens):
        parent = tree.parents[node]
        above = builder.root if parent == ROOT else builder.candidates[tree.tokens[parent]]
        assert above is builder.candidates[token].parent
    return list(tree.tokens)


@pytest.mark.parametrize("rate", RATES)
def test_nothing_random_costs_make_is_worth_more_of_what_is_covered(rate: float) -> None:
    """What a pass may take beyond a plain one is limited, and falls with every draft pass."""
    for seed in range(60):
        rng = np.random.default_rng([seed, 8])
        costs = (np.cumsum(rng.uniform(-0.6, 1.0, MOST + 1)).clip(0.2) + 1.0).tolist()
        seconds = profile_of(costs).verifying(0, MOST)
        spare, spent = float(rng.uniform(0.0, 3.0)) * UNIT, float(rng.uniform(0.0, 0.5)) * UNIT
        worth = worth_of(seconds, rate=rate, spare=spare)
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
def test_as_many_are_verified_as_are_granted(granted: int) -> None:
    """Where several answers share a pass: the likeliest, and each with its parent."""
    for seed in range(50):
        builder = grown(worth_of(shaped("flat")), np.random.default_rng([seed, 13]), 6)
        every = [one.reach for one in builder.candidates]
        assert builder.bid().reaches == sorted(every, reverse=True)
        found = kept(builder, builder.select(granted))
        assert sorted(found) == sorted(np.argsort(every)[::-1][:granted].tolist())


@pytest.mark.parametrize("firm", [False, True])
def test_no_pass_is_taken_that_nothing_makes_up_for(firm: bool) -> None:
    """Against counting every number of passes."""
    taken = 0
    for seed in range(300):
        rng = np.random.default_rng([seed, 14])
        costs = (np.cumsum(rng.uniform(-0.6, 1.0, MOST + 1)).clip(0.2) + 1.0).tolist()
        worth = worth_of(profile_of(costs).verifying(0, MOST), firm=firm)
        there = np.cumprod(rng.uniform(0.3, 1.0, 2)).tolist()
        continuation, one, now = (
            float(rng.uniform(0.3, 1.0)),
            rng.uniform(0.0, 0.6),
            worth.of(there),
        )
        takes = worth.further_passes_pay(now, there, (), there[-1], continuation, one * UNIT, 5)
        behind = [there[-1] * continuation**n for n in range(1, FARTHEST + 1)]
        pays = [worth.of(there, behind[:n]) - n * one > now for n in range(1, FARTHEST + 1)]
        assert not takes or any(pays)
        taken += takes
    assert taken > 30
