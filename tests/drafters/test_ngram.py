"""The n-gram: it copies what followed before, and its index is always the session's text."""

from __future__ import annotations

from itertools import islice
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.interfaces import Plan
from localspec.decoding.sources import LookupSource
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.acceptance_estimator import logit
from tests.support.drafting import EagerNgram
from tests.support.drafting import proposed as drafted
from tests.support.toys import examples, session_of

texts = st.lists(st.integers(0, 3), min_size=1, max_size=30)


def proposed(text: list[int], *, depth: int, width: int = 1, eager: bool = False) -> TokenTree:
    source = EagerNgram() if eager else NgramSource(NgramIndex())
    return drafted(source, session_of(text), Plan("ngram", depth, width))


def test_it_copies_what_followed_the_longest_repeat() -> None:
    tree = proposed([1, 2, 3, 4, 5, 9, 1, 2], depth=3)
    assert tree.tokens == [3, 4, 5]
    assert tree.is_chain()
    assert tree.sources == ["ngram"] * 3
    assert tree.proposals == [None] * 3, "its tokens are chosen, not drawn"


@pytest.mark.parametrize("depth", [1, 2, 7, 40])
def test_it_copies_as_far_as_it_is_asked_and_the_text_goes(depth: int) -> None:
    """At the end of the text it goes on with what it imagined."""
    tree = proposed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], depth=depth)
    assert tree.tokens == ([3, 4, 5, 6, 7, 8, 9, 1, 2] * 5)[:depth]


def test_repeat_that_is_too_short_is_not_worth_a_draft() -> None:
    text = [1, 2, 3, 4, 2]
    assert proposed(text, depth=3).tokens == []
    assert proposed(text, depth=1, eager=True).tokens == [3]


def test_candidates_are_what_followed_at_different_times() -> None:
    tree = proposed([1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 5, 9, 1, 2], depth=2, width=3)
    assert {tree.tokens[node] for node in tree.children(ROOT)} == {3, 4, 5}
    paths = [tuple(tree.path_tokens(node)) for node in range(len(tree)) if not tree.children(node)]
    assert sorted(paths) == [(3, 7), (4, 8), (5, 9)]


@examples(100)
@given(text=texts, depth=st.integers(1, 5), width=st.integers(1, 4), eager=st.booleans())
def test_proposals_keep_to_the_plan(text: list[int], depth: int, width: int, eager: bool) -> None:
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


@examples(50)
@given(text=texts, cuts=st.lists(st.integers(1, 30), max_size=4))
def test_index_is_the_same_however_the_text_came_in(text: list[int], cuts: list[int]) -> None:
    at_once, bit_by_bit = NgramIndex(), NgramIndex()
    at_once.sync(text)
    for end in sorted(min(cut, len(text)) for cut in cuts):
        bit_by_bit.sync(text[:end])
    bit_by_bit.sync(text)
    assert bit_by_bit.automaton.match() == at_once.automaton.match()
    one, other = (
        index.automaton.continuations(index.automaton.match(), 9) for index in (at_once, bit_by_bit)
    )
    assert one == other


# What it tells of the text, where it takes part in `auto`.

TEXT = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1]


def begun(text: list[int]) -> NgramSource:
    source = NgramSource(NgramIndex())
    source.begin(text)
    return source


def test_it_says_what_it_expects_and_on_what_grounds() -> None:
    """Features: 1, how long a match, how often so, how many predictions before were right."""
    source, session = begun(TEXT), session_of(TEXT)
    assert isinstance(source, LookupSource)
    first, second, *further = islice(source.expected(source.place(session)), 5)
    assert (first.token, first.weight) == (2, 3.0)
    assert first.features == pytest.approx((1.0, log2(4), logit(1 / 2), 0.0))
    assert (second.token, second.weight) == (4, 3.0), "what followed the longest ending"
    assert second.features == pytest.approx((1.0, log2(5), logit(1 / 2), log2(2)))
    assert [prediction.token for prediction in further] == [1, 2, 3]
    assert further[0].features[3] == pytest.approx(log2(3))
    session.context += [2]
    assert next(source.expected(source.place(session))).token == 4
    session.context += [9]
    assert list(source.expected(source.place(session))) == []


def test_a_prediction_is_proposed_from_the_first_token_on() -> None:
    index = NgramIndex()
    index.expect([1, 2, 3], [7, 8, 9])
    source = NgramSource(index)
    source.begin([1, 2, 3])
    tree = drafted(source, session_of([1, 2, 3]), Plan("ngram", 3, 1))
    assert tree.tokens == [7, 8, 9]


def test_a_prediction_is_found_again_where_the_answer_comes_back_to_it() -> None:
    index = NgramIndex()
    index.expect([1, 2, 3], [4, 5, 6, 7, 8, 9])
    index.begin([1, 2, 3])
    source = NgramSource(index)
    tree = drafted(source, session_of([1, 2, 3, 0, 0, 6, 7]), Plan("ngram", 2, 1))
    assert tree.tokens == [8, 9]


def test_a_prediction_is_forgotten_with_its_answer() -> None:
    index = NgramIndex()
    index.expect([1, 2, 3], [7, 8, 9])
    index.begin([1, 2, 3])
    index.expect([1, 2, 3], [])
    index.begin([1, 2, 3])
    source = NgramSource(index)
    assert list(source.expected(source.place(session_of([1, 2, 3])))) == []
