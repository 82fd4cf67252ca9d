"""One source goes on where another stopped."""

from __future__ import annotations

import pytest

from localspec.decoding.interfaces import Plan
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.named import Staged
from localspec.drafters.ngram import NgramIndex, NgramSource
from tests.support.drafting import proposed
from tests.support.toys import (
    GREEDY,
    ToyCache,
    ToyModel,
    ToySource,
    chosen_chain,
    session_of,
)

CYCLE = ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""


def drafted(source: Staged, plan: Plan, context: tuple[int, ...] = (0, 1)) -> TokenTree:
    return proposed(source, session_of(context, size=9, params=GREEDY), plan)


@pytest.mark.parametrize(("depth", "sources"), [(4, ["a", "a", "b", "b"]), (1, ["a"])])
def test_depth_is_shared(depth: int, sources: list[str]) -> None:
    both = Staged("both", chosen_chain([5] * 9, "a"), chosen_chain([6] * 9, "b"))
    tree = drafted(both, Plan("both", depth=depth))
    assert tree.sources == sources
    assert tree.is_chain()


@pytest.mark.parametrize("first", [[], [5]])
def test_second_takes_over_what_the_first_left(first: list[int]) -> None:
    both = Staged("both", chosen_chain(first, "a"), chosen_chain([6] * 9, "b"))
    assert drafted(both, Plan("both", depth=5)).tokens == [*first, *[6] * (5 - len(first))]


def test_only_the_first_offers_several_candidates() -> None:
    plans: dict[str, Plan] = {}

    def widely(session: Session, plan: Plan, tree: TokenTree) -> None:
        plans["first"] = plan
        tip = tree.tip()
        for token in range(plan.width):
            tree.add(token, tip, "a")

    def narrowly(session: Session, plan: Plan, tree: TokenTree) -> None:
        plans["second"] = plan
        tree.add(7, tree.tip(), "b")

    both = Staged("both", ToySource(widely), ToySource(narrowly))
    tree = drafted(both, Plan("both", depth=4, width=3, min_likelihood=0.3))
    assert tree.parents == [ROOT, ROOT, ROOT, 0]
    assert (plans["first"].width, plans["first"].depth) == (3, 2)
    assert (plans["second"].width, plans["second"].depth) == (1, 3)
    assert {plan.min_likelihood for plan in plans.values()} == {0.3}


def test_both_are_told_of_the_text_and_both_take_time() -> None:
    one, two = chosen_chain([5], "a"), chosen_chain([6], "b")
    both = Staged("both", one, two)
    both.begin([1, 2])
    both.committed([1, 2, 3], {})
    drafted(both, Plan("both", depth=2))
    assert one.prompts == two.prompts == [[1, 2]]
    assert one.synced == two.synced == [[1, 2, 3]]
    assert both.native_seconds == one.native_seconds + two.native_seconds == 2.0


def test_ngram_extends_the_draft_of_the_model() -> None:
    model = DraftModelSource(DraftModel(ToyCache(CYCLE), 3))
    both = Staged("model+ngram", model, NgramSource(NgramIndex()))
    tree = drafted(both, Plan("both", depth=6), (0, 1, 2, 0, 1))
    assert tree.tokens == [2, 0, 1, 2, 0, 1]
    assert tree.sources == ["model"] * 3 + ["ngram"] * 3
    assert both.native_seconds == 3.0


def test_model_extends_the_draft_of_the_ngram() -> None:
    cache = ToyCache(CYCLE)
    model = DraftModelSource(DraftModel(cache, 3))
    both = Staged("ngram+model", NgramSource(NgramIndex()), model)
    tree = drafted(both, Plan("both", depth=6), (0, 1, 2, 0, 1))
    assert tree.tokens == [2, 0, 1, 2, 0, 1]
    assert tree.sources == ["ngram"] * 3 + ["model"] * 3
    assert cache.tokens == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0], "the n-gram's tokens were read as well"
