"""The suffix automaton against brute force over short texts, and its size over hostile ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.suffix_automaton import START, Followers, Match, SuffixAutomaton
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
@given(text=texts, shortest=st.integers(1, 4))
def test_a_chain_is_the_best_one_followed_again_and_again(text: list[int], shortest: int) -> None:
    automaton = automaton_of(text)
    match, chain = automaton.match(), automaton.chain(automaton.match(), shortest)
    for _ in range(12):
        best = automaton.best(match, shortest)
        assert next(chain, None) == best
        if best is None:
            break
        match = automaton.follow(match, best[0])


@examples(200)
@given(
    text=texts,
    beyond=st.lists(st.integers(0, 2), max_size=4),
    shortest=st.integers(1, 4),
    most=st.integers(1, 5),
)
def test_continuations_are_what_followed_the_ending_and_then_its_shorter_endings(
    text: list[int], beyond: list[int], shortest: int, most: int
) -> None:
    automaton = automaton_of(text)
    match = automaton.match()
    for token in beyond:
        match = automaton.follow(match, token)
    whole = [*text, *beyond]
    longest: dict[int, int] = {}
    """Of each possible continuation, the length of the longest ending that it followed."""
    for length in range(match.length, shortest - 1, -1):
        for token in followers(text, whole[len(whole) - length :]):
            longest.setdefault(token, length)

    found = automaton.continuations(match, most, shortest)
    tokens = [token for token, _ in found]
    assert len(tokens) == len(set(tokens)) == min(most, len(longest))
    lengths = [longest[token] for token in tokens]
    assert lengths == sorted(longest.values(), reverse=True)[:most]
    assert all(count >= 1 for _, count in found)


def test_likelier_continuations_come_first() -> None:
    automaton = SuffixAutomaton()
    for mark, token in enumerate([1, 2, 1, 1, 1]):
        automaton.extend([7, token, 100 + mark])
    automaton.extend([7])
    (first, count), (second, other) = automaton.continuations(automaton.match(), 5)
    assert (first, second) == (1, 2)
    assert count > other


def test_most_recent_of_equal_continuations_comes_first() -> None:
    automaton = automaton_of([7, 1, 100, 7, 2, 101, 7, 3, 102, 7])
    assert automaton.continuations(automaton.match(), 1)[0][0] == 3


def test_continuations_are_cut_to_the_number_asked_for() -> None:
    automaton = automaton_of([7, 1, 100, 7, 2, 101, 7, 3, 102, 7])
    everything = automaton.continuations(automaton.match(), 9)
    for most in (1, 2, 3):
        assert automaton.continuations(automaton.match(), most) == everything[:most]


def test_matches_shorter_than_asked_for_have_no_continuations() -> None:
    automaton = automaton_of([1, 2, 3, 1, 2])
    match = automaton.match()
    assert match.length == 2
    assert [token for token, _ in automaton.continuations(match, 5, 2)] == [3]
    assert automaton.continuations(match, 5, 3) == []


def test_text_without_repeats_matches_nothing() -> None:
    for text in ([], [1], [1, 2, 3]):
        automaton = automaton_of(text)
        match = automaton.match()
        assert (match.state, match.length) == (START, 0)
        assert automaton.continuations(match, 5) == []
        assert automaton.follow(match, 9).length == 0


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


def test_links_lead_to_ever_shorter_endings() -> None:
    automaton = automaton_of(random.Random(4).choices(range(3), k=500))
    for state in range(1, len(automaton._next)):
        assert automaton._length[automaton._link[state]] < automaton._length[state]


def test_long_copies_are_followed_to_their_end() -> None:
    passage = random.Random(5).choices(range(40), k=3000)
    automaton = automaton_of([*passage, 99, *passage[:20]])
    match, copied = automaton.match(), passage[:20]
    assert match.length == 20
    while len(copied) < len(passage):
        (token, _) = automaton.continuations(match, 1)[0]
        copied.append(token)
        match = automaton.follow(match, token)
    assert copied == passage
    assert match.length == len(passage)


# What is kept up to date with every token, against a search through all that followed.


def searched(
    automaton: SuffixAutomaton, match: Match, most: int, shortest: int
) -> tuple[tuple[int, int, int, int] | None, list[tuple[int, int]]]:
    """`best` and `continuations`, by sorting everything that followed each ending."""
    best: tuple[int, int, int, int] | None = None
    found: dict[int, int] = {}
    state, length = match.state, match.length
    while length >= shortest and state != START:
        options, follows = automaton._next[state], automaton._follows[state]
        counts = dict(follows or {})
        newest = -1 if follows is None else follows.newest
        for first in list(options)[:1]:
            counts[first] = counts.get(first, 0) + 1
        ordered = sorted(options, key=lambda t: (counts.get(t, 1), t == newest), reverse=True)
        if best is None and ordered:
            total = sum(counts.get(t, 1) for t in options)
            best = ordered[0], length, counts.get(ordered[0], 1), total
        new = [token for token in ordered if token not in found]
        for token in new[: most - len(found)]:
            found[token] = counts.get(token, 1)
        state = automaton._link[state]
        length = automaton._length[state]
    return best, list(found.items())


@examples(300)
@given(
    text=texts | st.lists(st.integers(0, 9), max_size=60),
    beyond=st.lists(st.integers(0, 9), max_size=3),
    shortest=st.integers(1, 3),
)
def test_likeliest_followers_are_those_that_a_search_finds(
    text: list[int], beyond: list[int], shortest: int
) -> None:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.extend([token])
        match = automaton.match()
        for imagined in [*beyond, None]:
            for most in (1, 2, 4, 7):
                best, continuations = searched(automaton, match, most, shortest)
                assert automaton.best(match, shortest) == best
                assert automaton.continuations(match, most, shortest) == continuations
            if imagined is not None:
                match = automaton.follow(match, imagined)


@pytest.mark.parametrize("spread", [1.01, 1.5])
def test_likeliest_followers_in_a_long_text_are_those_that_a_search_finds(spread: float) -> None:
    """Words as unevenly frequent as real ones, with copies of earlier stretches between them."""
    rng = random.Random(6)
    weights = [1.0 / (n + 2.7) ** spread for n in range(300)]
    text: list[int] = []
    while len(text) < 3000:
        text += rng.choices(range(300), weights, k=9)
        start = rng.randrange(len(text))
        text += text[start : start + 7]
    automaton = SuffixAutomaton()
    for token in text:
        automaton.extend([token])
        match = automaton.match()
        best, continuations = searched(automaton, match, 4, 1)
        assert automaton.best(match) == best
        assert automaton.continuations(match, 4) == continuations
    for state in range(1, len(automaton._next)):
        match = Match(state, automaton._length[state])
        for most in (1, 3, 6):
            best, continuations = searched(automaton, match, most, 1)
            assert automaton.best(match) == best
            assert automaton.continuations(match, most) == continuations


looks = 0


class Counted(dict[int, int]):
    """A dict that counts the entries it is asked for, one after the other."""

    __slots__ = ()

    def __iter__(self) -> Iterator[int]:
        global looks
        for key in super().__iter__():
            looks += 1
            yield key

    def keys(self) -> Any:
        return list(self)

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def values(self) -> Any:
        return [self[key] for key in self]


class CountedFollowers(Counted, Followers):
    __slots__ = ()


def looked_at(followers: int) -> list[int]:
    """Entries looked at for each question about a token that so many others followed."""
    global looks
    text: list[int] = []
    for n in range(followers):
        text += [7, 100 + n, -n, 7, 100 + n // 3]
    automaton = automaton_of([*text, 7])
    match = automaton.follow(Match(START, 0), 7)
    assert len(automaton._next[match.state]) == followers
    automaton._next = [Counted(options) for options in automaton._next]
    for follows in automaton._follows:
        if follows is not None:
            follows.__class__ = CountedFollowers
    counts = []
    for ask in (
        lambda: automaton.best(match),
        lambda: automaton.continuations(match, 1),
        lambda: automaton.continuations(match, 4),
        lambda: automaton.extend([100]),
    ):
        looks = 0
        ask()
        counts.append(looks)
    return counts


def test_work_does_not_grow_with_what_followed() -> None:
    """A frequent token of a long text was followed by hundreds of others."""
    few, many = looked_at(40), looked_at(4000)
    assert many == few
    assert max(few) <= 12
