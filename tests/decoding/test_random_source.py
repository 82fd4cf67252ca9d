"""Counter-based random numbers: known answers, independence and uniformity."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from localspec.decoding.distribution import Distribution
from localspec.decoding.random_source import SeededRandom, splitmix64, uniforms
from tests.support.toys import Outcome, examples

SUSPECT = 1e-3
"""Significance; seeds are fixed, so that tests are deterministic."""
P = Distribution.normalised(np.array([2, 3, 5, 7], np.int32), np.array([4.0, 3.0, 2.0, 1.0]))
Q = Distribution.normalised(np.array([1, 3, 5, 11], np.int32), np.array([1.0, 4.0, 2.0, 3.0]))

states = st.integers(0, (1 << 64) - 1)


def test_known_answers() -> None:
    """Those of the reference implementation (splitmix64.c) for two seeds."""
    assert [splitmix64(1234567, n) for n in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [splitmix64(0, n) for n in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@examples(50)
@given(state=states, ids=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9))
def test_array_version_gives_the_same_numbers(state: int, ids: list[int]) -> None:
    """Equal bits, plus half of the last of 52 bits, so that neither 0 nor 1 occurs."""
    found = uniforms(np.array(ids, np.int32), state)
    assert found.tolist() == [((splitmix64(state, n) >> 12) + 0.5) / 2**52 for n in ids]
    assert 0.0 < found.min() <= found.max() < 1.0


def frequencies(found: Iterable[Outcome], chances: Mapping[Outcome, float]) -> float:
    seen = Counter(found)
    assert set(seen) <= set(chances), "nothing else comes"
    counts = [seen[outcome] for outcome in chances]
    return float(chisquare(counts, [seen.total() * chance for chance in chances.values()]).pvalue)


PAIRED = {tuple(pair): P.prob(pair[0]) * P.prob(pair[1]) for pair in product(P.ids, repeat=2)}
THROWN = {
    (token, side): P.prob(token) * chance
    for token, (side, chance) in product(P.ids, ((1, 0.3), (0, 0.7)))
}
DECISIONS: dict[str, tuple[Callable[[SeededRandom, int], tuple[int, int]], Mapping[Any, float]]] = {
    "draws of neighbours": (lambda r, n: (r.draw(P, n), r.draw(P, n + 1)), PAIRED),
    "draw and proposal": (lambda r, n: (r.draw(P, n), r.propose(P, n, 0)), PAIRED),
    "draw and coin": (lambda r, n: (r.draw(P, n), int(r.coin(0.3, n, 0))), THROWN),
    "proposal and coin": (lambda r, n: (r.propose(P, n, 0), int(r.coin(0.3, n, 0))), THROWN),
    "tokens of a draft": (lambda r, n: (r.propose(P, n, 0), r.propose(P, n, 1)), PAIRED),
    "drafts of a place": (lambda r, n: (r.propose(P, n, 1), r.propose(P, n + 1, 0)), PAIRED),
}


@pytest.mark.parametrize("what", DECISIONS)
@pytest.mark.parametrize("first", [0, 1])
def test_decisions_are_independent(what: str, first: int) -> None:
    (decide, chances), random = DECISIONS[what], SeededRandom(1)
    found = [decide(random, n) for n in range(first, 40_000, 2)]
    assert frequencies(found, chances) > SUSPECT


def test_proposals_are_drawn_without_replacement() -> None:
    random, found = SeededRandom(3), []
    for n in range(20_000):
        first = random.propose(P, n, 2)
        rest = P.without(first)
        assert rest is not None
        found.append((first, random.propose(rest, n, 2)))
    chances = {
        (a, b): P.prob(a) * P.prob(b) / (1.0 - P.prob(a))
        for a, b in product(P.ids.tolist(), repeat=2)
        if a != b
    }
    assert frequencies(found, chances) > SUSPECT


def test_coupled_draws_mostly_agree() -> None:
    """With probability between s/(2 − s) and s for an overlap of s; independent draws: Σ p·q."""
    random, count = SeededRandom(5), 20_000
    overlap = float(np.minimum(P.probs, Q.at(P.ids)).sum())
    uncoupled = float((P.probs * Q.at(P.ids)).sum())
    same = sum(random.draw(P, n) == random.draw(Q, n) for n in range(count)) / count
    margin = 4.0 * np.sqrt(0.25 / count)
    assert overlap / (2.0 - overlap) - margin < same < overlap + margin
    assert same > uncoupled + 0.1
    independent = sum(random.draw(P, n) == random.propose(Q, n, 0) for n in range(count)) / count
    assert independent == pytest.approx(uncoupled, abs=margin)


def test_every_bit_of_a_seed_is_used() -> None:
    seeds = [0, *(1 << bit for bit in range(130))]
    assert len({tuple(SeededRandom(seed).race(P, 0).tolist()) for seed in seeds}) == len(seeds)
