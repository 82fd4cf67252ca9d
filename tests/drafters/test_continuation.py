"""One source goes on where another stopped."""

from __future__ import annotations

import pytest

from localspec.decoding.interfaces import Plan
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import Staged
from localspec.drafters.ngram import NgramIndex, NgramSource
from tests.decoding.steps import CYCLE
from tests.support.drafting import proposed
from tests.support.toys import (
    GREEDY,
    ToyCache,
    chosen_chain,
    session_of,
)


def drafted(source: Staged, plan: Plan, context: tuple[int, ...] = (0, 1)) -> TokenTree:
    return proposed(source, session_of(context, size=9, params=GREEDY), plan)


@pytest.mark.parametrize("first", [[], [5]])
def test_second_takes_over_what_the_first_left(first: list[int]) -> None:
    both = Staged("both", chosen_chain(first, "a"), chosen_chain([6] * 9, "b"))
    assert drafted(both, Plan("both", depth=5)).tokens == [*first, *[6] * (5 - len(first))]


def test_ngram_extends_the_draft_of_the_model() -> None:
    model = DraftModel(ToyCache(CYCLE), 3)
    both = Staged("model+ngram", model, NgramSource(NgramIndex()))
    tree = drafted(both, Plan("both", depth=6), (0, 1, 2, 0, 1))
    assert tree.tokens == [2, 0, 1, 2, 0, 1]
    assert tree.sources == ["model"] * 3 + ["ngram"] * 3
    assert both.native_seconds == 3.0


def test_model_extends_the_draft_of_the_ngram() -> None:
    cache = ToyCache(CYCLE)
    model = DraftModel(cache, 3)
    both = Staged("ngram+model", NgramSource(NgramIndex()), model)
    tree = drafted(both, Plan("both", depth=6), (0, 1, 2, 0, 1))
    assert tree.tokens == [2, 0, 1, 2, 0, 1]
    assert tree.sources == ["ngram"] * 3 + ["model"] * 3
    assert cache.tokens == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0], "the n-gram's tokens were read as well"
