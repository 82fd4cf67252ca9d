"""The n-gram drafter and its index."""

import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.interfaces import Plan
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.ngram import NgramIndex, NgramSource
from tests.support.drafting import EagerNgram
from tests.support.drafting import proposed as drafted
from tests.support.toys import examples, session_of

texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def proposed(text: list[int], *, depth: int, width: int = 1, eager: bool = False) -> TokenTree:
    source = EagerNgram() if eager else NgramSource(NgramIndex())
    return drafted(source, session_of(text), Plan("ngram", depth, width))


@pytest.mark.parametrize("depth", [1, 2, 7, 40])
def test_copy_is_as_long_as_the_plan(depth: int) -> None:
    """At the end of the text it continues with its own draft."""
    tree = proposed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], depth=depth)
    assert tree.tokens == ([3, 4, 5, 6, 7, 8, 9, 1, 2] * 5)[:depth]
    assert tree.is_chain()
    assert tree.sources == ["ngram"] * depth
    assert tree.proposals == [None] * depth, "its tokens are chosen, not drawn"


def test_short_match_is_not_drafted() -> None:
    text = [1, 2, 3, 4, 2]
    assert proposed(text, depth=3).tokens == []
    assert proposed(text, depth=1, eager=True).tokens == [3]


def test_longest_ending_and_most_frequent_continuation_come_first() -> None:
    assert proposed([9, 1, 2, 7, 8, 6, 1, 2, 3, 4, 5, 1, 2, 3, 4, 9, 1, 2], depth=2).tokens == [
        7,
        8,
    ]
    text = [1, 2, 3, 5, 1, 2, 4, 6, 1, 2, 4, 7, 8, 1, 2]
    assert proposed(text, depth=1).tokens == [4]


def test_candidates_are_different_continuations() -> None:
    tree = proposed([1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 5, 9, 1, 2], depth=2, width=3)
    assert {tree.tokens[node] for node in tree.children(ROOT)} == {3, 4, 5}
    paths = [tuple(tree.path_tokens(node)) for node in range(len(tree)) if not tree.children(node)]
    assert sorted(paths) == [(3, 7), (4, 8), (5, 9)]


@examples(100)
@given(text=texts, depth=st.integers(1, 5), width=st.integers(1, 4), eager=st.booleans())
def test_proposals_follow_the_plan(text: list[int], depth: int, width: int, eager: bool) -> None:
    tree = proposed(text, depth=depth, width=width, eager=eager)
    assert all(depths <= depth for depths in tree.depths)
    leaves = sum(not tree.children(node) for node in range(len(tree)))
    assert leaves <= width
    for node in range(ROOT, len(tree)):
        siblings = [tree.tokens[child] for child in tree.children(node)]
        assert len(siblings) == len(set(siblings)), "candidates differ"
    joined = "".join(map(str, text))
    for node in tree.children(ROOT)[:1]:
        followed = "".join(map(str, [*text[-1 if eager else -2 :], tree.tokens[node]]))
        assert followed in joined, "it followed that ending before"


@pytest.mark.parametrize(("deviation", "depth"), [([], 6), ([0, 0, 6, 7], 2)])
def test_predicted_output_is_drafted(deviation: list[int], depth: int) -> None:
    """From the first token, and again after a deviation."""
    index, expected = NgramIndex(), [4, 5, 6, 7, 8, 9]
    index.expect([1, 2, 3], expected)
    source = NgramSource(index)
    source.begin([1, 2, 3])
    tree = drafted(source, session_of([1, 2, 3, *deviation]), Plan("ngram", depth, 1))
    assert tree.tokens == expected[-depth:]


def test_predicted_output_is_dropped_after_its_answer() -> None:
    index = NgramIndex()
    index.expect([1, 2, 3], [7, 8, 9])
    index.begin([1, 2, 3])
    index.expect([1, 2, 3], [])
    index.begin([1, 2, 3])
    source = NgramSource(index)
    assert list(source.predict(source.position(session_of([1, 2, 3])))) == []


# The index, compared with brute force, and its size.


def longest_ending(text: list[int]) -> int:
    """Length of the longest ending of a text that occurs in it before its end."""
    for length in range(len(text) - 1, 0, -1):
        if any(text[i : i + length] == text[-length:] for i in range(len(text) - length)):
            return length
    return 0


@examples(200)
@given(text=st.lists(st.integers(0, 2), max_size=24) | st.lists(st.integers(0, 1), max_size=24))
def test_match_is_the_longest_repeated_ending(text: list[int]) -> None:
    index = NgramIndex()
    for i in range(1, len(text) + 1):
        index.sync(text[:i])
        found = next(index.longest(text[:i]), None)
        assert (0 if found is None else found.length) == longest_ending(text[:i])


WORST_CASES: dict[str, Callable[[int], list[int]]] = {
    "one token": lambda n: [0] * n,
    "pairs": lambda n: [0, 1] * (n // 2),
    "all different": lambda n: list(range(n)),
    "random, small alphabet": lambda n: random.Random(1).choices(range(2), k=n),
    "random, large alphabet": lambda n: random.Random(2).choices(range(500), k=n),
    "copies": lambda n: random.Random(3).choices(range(500), k=n // 8) * 8,
}


@pytest.mark.parametrize("make", WORST_CASES.values(), ids=WORST_CASES.keys())
@pytest.mark.parametrize("n", [16, 4096])
def test_index_grows_linearly(make: Callable[[int], list[int]], n: int) -> None:
    text, index = make(n), NgramIndex()
    tracemalloc.start()
    try:
        index.sync(text)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_400 * (n + 8)
