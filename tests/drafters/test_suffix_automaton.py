"""The suffix automaton against brute force over short texts, and its size over hostile ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.suffix_automaton import SuffixAutomaton
from tests.support.toys import examples

texts = st.lists(st.integers(0, 2), max_size=24) | st.lists(st.integers(0, 1), max_size=24)


def automaton_of(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


def followers(text: list[int], ending: list[int]) -> list[int]:
    """Tokens that came after `ending` in the text, in order."""
    n = len(ending)
    places = [i for i in range(len(text) - n) if text[i : i + n] == ending]
    return [text[i + n] for i in places]


def longest_ending(text: list[int], beyond: Sequence[int] = ()) -> int:
    """Length of the longest ending of text + beyond that occurs in the text, before its end."""
    whole = [*text, *beyond]
    known = len(text) if beyond else len(text) - 1  # where an occurrence may end
    for length in range(len(whole), 0, -1):
        ending = whole[len(whole) - length :]
        if any(text[i : i + length] == ending for i in range(known - length + 1)):
            return length
    return 0


@examples(200)
@given(text=texts)
def test_match_is_the_longest_ending_that_occurred_before(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for i, token in enumerate(text):
        automaton.extend([token])
        assert automaton.match().length == longest_ending(text[: i + 1])
    assert automaton.tokens == text
    assert len(automaton) == len(text)


@examples(200)
@given(text=texts, beyond=st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_followed_match_is_the_longest_ending_of_what_was_imagined(
    text: list[int], beyond: list[int]
) -> None:
    automaton = automaton_of(text)
    match = automaton.match()
    for i, token in enumerate(beyond):
        match = automaton.follow(match, token)
        assert match.length == longest_ending(text, beyond[: i + 1])
    assert automaton.tokens == text, "imagining does not write"


@examples(200)
@given(text=texts)
def test_a_chain_is_the_best_one_followed_again_and_again(text: list[int]) -> None:
    automaton = automaton_of(text)
    match, chain = automaton.match(), automaton.chain(automaton.match())
    for _ in range(12):
        best = next(automaton.chain(match), None)
        assert next(chain, None) == best
        if best is None:
            break
        match = automaton.follow(match, best[0])


@examples(200)
@given(text=texts, beyond=st.lists(st.integers(0, 2), max_size=4), most=st.integers(1, 5))
def test_continuations_are_what_followed_the_ending_and_then_its_shorter_endings(
    text: list[int], beyond: list[int], most: int
) -> None:
    automaton = automaton_of(text)
    match = automaton.match()
    for token in beyond:
        match = automaton.follow(match, token)
    whole = [*text, *beyond]
    longest: dict[int, int] = {}
    """Of each possible continuation, the length of the longest ending that it followed."""
    for length in range(match.length, 0, -1):
        for token in followers(text, whole[len(whole) - length :]):
            longest.setdefault(token, length)

    found = automaton.continuations(match, most)
    tokens = [token for token, _ in found]
    assert len(tokens) == len(set(tokens)) == min(most, len(longest))
    lengths = [longest[token] for token in tokens]
    assert lengths == sorted(longest.values(), reverse=True)[:most]
    assert all(count >= 1 for _, count in found)


def fibonacci(n: int) -> list[int]:
    one, two = [0], [0, 1]
    while len(two) < n:
        one, two = two, two + one
    return two[:n]


HOSTILE: dict[str, Callable[[int], list[int]]] = {
    "one token": lambda n: [0] * n,
    "most states": lambda n: [0] + [1] * (n - 1),
    "most transitions": lambda n: [0] + [1] * (n - 2) + [2],
    "two halves": lambda n: [0] * (n // 2) + [1] * (n // 2),
    "pairs": lambda n: [0, 1] * (n // 2),
    "fibonacci": fibonacci,
    "all different": lambda n: list(range(n)),
    "random, small alphabet": lambda n: random.Random(1).choices(range(2), k=n),
    "random, large alphabet": lambda n: random.Random(2).choices(range(500), k=n),
    "copies": lambda n: random.Random(3).choices(range(500), k=n // 8) * 8,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("n", [16, 4096])
def test_automaton_grows_linearly(make: Callable[[int], list[int]], n: int) -> None:
    """Blumer et al. 1985: 2n − 1 states and 3n − 4 transitions at most, whatever the text."""
    automaton = automaton_of(make(n))
    assert len(automaton._next) <= 2 * n - 1
    assert sum(map(len, automaton._next)) <= 3 * n - 4
    assert sum(len(counts or {}) for counts in automaton._follows) <= 3 * n


@examples(200)
@given(text=texts, beyond=st.lists(st.integers(0, 2), max_size=4))
def test_best_is_the_most_frequent_continuation(text: list[int], beyond: list[int]) -> None:
    automaton = automaton_of(text)
    match = automaton.match()
    for token in beyond:
        match = automaton.follow(match, token)
    best, found = next(automaton.chain(match), None), automaton.continuations(match, 9)
    if best is None:
        assert found == []
        return
    token, length, count, total = best
    assert found[0] == (token, count)
    followed = set(followers(text, [*text, *beyond][len(text) + len(beyond) - length :]))
    counts = [count for token, count in found if token in followed]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) == total
