"""Passes of a draft model over one draft: which rows are known, and which are read for it."""

from __future__ import annotations

from collections import Counter

import pytest

from localspec.decoding.session import Session
from localspec.decoding.sources import Drafted, DraftPasses
from localspec.decoding.tree import ROOT
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.draft_passes import ChainPasses, RowsAhead, TreePasses
from tests.drafters.lively import LIVELY, TEXT, begun, rows_behind
from tests.support.toys import (
    START,
    BranchingToyCache,
    ToyCache,
    session_of,
)


class Sketch:
    """A `Drafted` whose candidates are put in by hand.

    Attributes:
        expected: tokens to be read along behind a candidate.
        sizes: of the passes that were counted.
    """

    def __init__(self) -> None:
        self.session: Session = session_of(TEXT)
        self.branching = True
        self.depth = 9
        self.expected: dict[int, list[int]] = {}
        self.sizes: list[int] = []
        self._candidates: list[tuple[int, int]] = []

    def put(self, token: int, parent: int = ROOT) -> int:
        """A further candidate."""
        self._candidates.append((token, parent))
        return len(self._candidates) - 1

    def token(self, node: int) -> int:
        return self._candidates[node][0]

    def parent(self, node: int) -> int:
        return self._candidates[node][1]

    def path(self, node: int) -> list[int]:
        return [] if node == ROOT else [*self.path(self.parent(node)), self.token(node)]

    def primes(self, node: int, unread: int) -> list[int]:
        return self.expected.get(node, [])

    def read(self, size: int) -> None:
        self.sizes.append(size)


def assert_row(passes: DraftPasses, growing: Drafted, node: int) -> None:
    assert passes.row(node).tolist() == rows_behind([*TEXT, *growing.path(node)])[0]


@pytest.mark.parametrize("kind", [ChainPasses, TreePasses])
def test_row_is_known_once_it_is_read(kind: type[ChainPasses] | type[TreePasses]) -> None:
    cache, growing = BranchingToyCache(LIVELY), Sketch()
    passes: DraftPasses = kind(begun(cache))
    node = ROOT
    for token in (2, 0, 1):
        assert not passes.knows(growing, node)
        passes.read(growing, [node])
        assert passes.knows(growing, node)
        assert_row(passes, growing, node)
        node = growing.put(token, node)
    assert growing.sizes == [1, 1, 1]
    assert cache.decoded[-3:] == [(*TEXT,), (*TEXT, 2), (*TEXT, 2, 0)]


@pytest.mark.parametrize("kind", [ChainPasses, TreePasses])
def test_expected_tokens_bring_their_rows_with_the_same_pass(
    kind: type[ChainPasses] | type[TreePasses],
) -> None:
    cache, growing = BranchingToyCache(LIVELY), Sketch()
    passes: DraftPasses = kind(begun(cache))
    growing.expected[ROOT] = [1, 2]
    passes.read(growing, [ROOT])
    assert growing.sizes == [3]
    assert_row(passes, growing, ROOT)
    first = growing.put(1)
    assert passes.knows(growing, first)
    assert_row(passes, growing, first)
    second = growing.put(2, first)
    assert passes.knows(growing, second)
    assert_row(passes, growing, second)
    beyond = growing.put(0, second)
    assert not passes.knows(growing, beyond)
    passes.read(growing, [beyond])
    assert_row(passes, growing, beyond)
    assert growing.sizes == [3, 1]
    assert max(Counter(cache.decoded).values()) == 1


@pytest.mark.parametrize("kind", [ChainPasses, TreePasses])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_sibling_of_an_expected_token_is_not_taken_for_what_follows_it(
    kind: type[ChainPasses] | type[TreePasses], order: tuple[int, int]
) -> None:
    """2 is expected behind 1, and comes in the place of 1."""
    growing = Sketch()
    passes: DraftPasses = kind(begun(BranchingToyCache(LIVELY)))
    growing.expected[ROOT] = [1, 2]
    passes.read(growing, [ROOT])
    one, other = growing.put(1), growing.put(2)
    known = {node: passes.knows(growing, node) for node in ((one, other)[n] for n in order)}
    assert known == {one: True, other: False}
    assert passes.knows(growing, one), "asking for the other one changes nothing"
    assert_row(passes, growing, one)
    following = growing.put(2, one)
    assert passes.knows(growing, following)
    assert_row(passes, growing, following)


@pytest.mark.parametrize("kind", [ChainPasses, TreePasses])
def test_token_that_was_not_expected_is_read(
    kind: type[ChainPasses] | type[TreePasses],
) -> None:
    cache, growing = BranchingToyCache(LIVELY), Sketch()
    model = begun(cache)
    passes: DraftPasses = kind(model)
    growing.expected[ROOT] = [1, 2]
    passes.read(growing, [ROOT])
    node = growing.put(0)
    assert not passes.knows(growing, node)
    passes.read(growing, [node])
    assert_row(passes, growing, node)
    assert growing.sizes == [3, 1]
    model.sync([*TEXT, 0, 0])
    assert cache.tokens == [*TEXT, 0], "what was expected is dropped"


def test_chain_knows_rows_that_were_read_ahead() -> None:
    cache, growing = ToyCache(LIVELY), Sketch()
    rows = LIVELY.logits([TEXT, [*TEXT, 1], [*TEXT, 1, 1]])
    passes = ChainPasses(begun(cache), RowsAhead(rows, [1, 1]))
    cache.native_seconds = 0.0
    node = ROOT
    for token in (1, 1):
        assert passes.knows(growing, node)
        assert_row(passes, growing, node)
        node = growing.put(token, node)
    assert passes.knows(growing, node)
    assert_row(passes, growing, node)
    assert not passes.knows(growing, growing.put(1, node))
    assert growing.sizes == []
    assert cache.native_seconds == 0.0


@pytest.mark.parametrize(("capacity", "expected"), [(3, 0), (4, 1), (5, 2), (9, 2)])
@pytest.mark.parametrize("kind", [ChainPasses, TreePasses])
def test_full_cache_takes_no_expected_tokens(
    kind: type[ChainPasses] | type[TreePasses], capacity: int, expected: int
) -> None:
    """`ToyCache` takes no token beyond its capacity."""
    growing = Sketch()
    passes: DraftPasses = kind(begun(BranchingToyCache(LIVELY, capacity=capacity)))
    growing.expected[ROOT] = [1, 2]
    passes.read(growing, [ROOT])
    assert growing.sizes == [1 + expected]


def test_recurrent_chain_goes_back_to_where_it_was_read_without_expected_tokens() -> None:
    """It has a checkpoint there; behind expected tokens it would lose what was read with them."""
    cache, growing = ToyCache(LIVELY, recurrent=True), Sketch()
    passes = ChainPasses(begun(cache))
    passes.read(growing, [ROOT])
    node = growing.put(2)
    growing.expected[node] = [1]
    passes.read(growing, [node])
    assert cache.tokens == [*TEXT, 2, 1]
    other = growing.put(0, node)
    passes.read(growing, [other])
    assert_row(passes, growing, other)
    assert cache.tokens == [*TEXT, 2, 0]
    assert growing.sizes == [1, 2, 2], "one token was lost with the one that was not said"


def test_several_candidates_are_read_in_one_pass() -> None:
    cache, growing = BranchingToyCache(LIVELY), Sketch()
    passes = TreePasses(begun(cache))
    passes.read(growing, [ROOT])
    level = [growing.put(token) for token in (0, 1, 2)]
    passes.read(growing, level)
    for node in level:
        assert passes.knows(growing, node)
        assert_row(passes, growing, node)
    below = [growing.put(0, level[2]), growing.put(1, level[0])]
    passes.read(growing, below)
    for node in below:
        assert_row(passes, growing, node)
    assert not passes.knows(growing, level[1]), "its row stood where this pass wrote"
    assert growing.sizes == [1, 3, 2]
    assert cache.widest == 3
    assert max(Counter(cache.decoded).values()) == 1


def test_candidates_hang_from_expected_tokens_that_were_said() -> None:
    cache, growing = BranchingToyCache(LIVELY), Sketch()
    model = begun(cache)
    passes = TreePasses(model)
    growing.expected[ROOT] = [1, 2, 0]
    passes.read(growing, [ROOT])
    first, other = growing.put(1), growing.put(0)
    second = growing.put(2, first)
    assert passes.knows(growing, first)
    assert passes.knows(growing, second)
    below = growing.put(1, second)
    passes.read(growing, [other, below])
    assert_row(passes, growing, other)
    assert_row(passes, growing, below)
    model.sync([*TEXT, 1, 2, 1, 0])
    assert cache.tokens == [*TEXT, 1, 2, 1]
    assert max(Counter(cache.decoded).values()) == 1


@pytest.mark.parametrize(
    ("capacity", "most_leaves", "fit"), [(64, 8, 3), (64, 2, 2), (64, 1, 1), (5, 8, 2), (3, 8, 0)]
)
def test_rows_without_room_stay_unknown(capacity: int, most_leaves: int, fit: int) -> None:
    """`BranchingToyCache` takes no token, and no branch, beyond what it can hold."""
    cache, growing = BranchingToyCache(LIVELY, capacity=capacity, max_leaves=most_leaves), Sketch()
    passes = TreePasses(begun(cache))
    passes.read(growing, [ROOT])
    level = [growing.put(token) for token in (0, 1, 2)]
    passes.read(growing, level)
    assert [passes.knows(growing, node) for node in level] == [True] * fit + [False] * (3 - fit)
    assert growing.sizes == [1, fit][: 2 if fit else 1]


def test_branch_that_goes_on_needs_no_further_one() -> None:
    cache, growing = BranchingToyCache(LIVELY, max_leaves=2), Sketch()
    passes = TreePasses(begun(cache))
    growing.expected[ROOT] = [1]
    passes.read(growing, [ROOT])
    level = [growing.put(token) for token in (1, 2)]
    assert [passes.knows(growing, node) for node in level] == [True, False]
    passes.read(growing, [level[1]])
    assert passes.knows(growing, level[1])
    below = [growing.put(0, level[0]), growing.put(0, level[1]), growing.put(1, level[1])]
    passes.read(growing, below)
    assert [passes.knows(growing, node) for node in below] == [True, True, False]


@pytest.mark.parametrize("kind", [ChainPasses, TreePasses])
def test_of_a_long_text_its_beginning_and_end_are_read(
    kind: type[ChainPasses] | type[TreePasses],
) -> None:
    cache, growing = BranchingToyCache(LIVELY, capacity=200), Sketch()
    text = [*TEXT * 30, 1, 0, 0, 2]
    growing.session = session_of(text)
    passes: DraftPasses = kind(DraftModel(cache, START + 1, window=8))
    passes.read(growing, [ROOT])
    assert growing.sizes == [4 + 8]
    assert cache.tokens == [*text[:4], *text[-8:]]
    assert passes.row(ROOT).tolist() == rows_behind(text)[0]
    node = growing.put(1)
    passes.read(growing, [node])
    assert growing.sizes == [4 + 8, 1]
    assert passes.row(node).tolist() == rows_behind([*text, 1])[0]
