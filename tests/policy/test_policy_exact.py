"""The policy: whatever it decides, the text is distributed as the target's own.

As in `tests.decoding.test_lossless`, nothing here is a statistical test: the real loop, the
policy run over toy models with a source of chance that takes every possible outcome in turn. The
policy learns while it runs, so it is made anew each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import AcceptanceRule, SpeculativeSampling
from localspec.decoding.interfaces import Draft, Drafter, Plan
from localspec.decoding.rules import BestLossless
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.policy import Policy
from tests.decoding.exact import EXACT, gap, texts, undrafted
from tests.policy.builders import Pair, distribution_of, seen_trees
from tests.policy.measuring import SHAPES
from tests.support.toys import (
    SIZE,
    START,
    Forbids,
    ToyCache,
    ToyModel,
    examples,
    models,
    started,
)

WRONG = 1e-3  # a gap as large as this must not go unseen
MODEL = started([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])
DRAFT = started([[0.1, 0.2, 0.7], [0.7, 0.1, 0.2], [0.2, 0.7, 0.1]])
REPEATS = (0, 1, 2, 0, 1, 2, 0, START)  # a prompt with which the n-gram has something to say

tokens = st.integers(0, SIZE - 1)
prompts = st.lists(tokens, min_size=2, max_size=8).map(lambda text: (*text, START))

for_shapes = pytest.mark.parametrize("shape", SHAPES)
for_rules = pytest.mark.parametrize(
    "rule", [SpeculativeSampling(), BestLossless()], ids=lambda rule: rule.name
)
CHEAP, DEAR = 0.05, 0.5  # passes of the draft model, in passes of the target
for_prices = pytest.mark.parametrize("price", [CHEAP, DEAR])
for_drafts = pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "chosen"])


@for_shapes
@for_prices
@for_rules
@for_drafts
@examples(3)
@given(model=models(), draft=models(), prompt=prompts)
def test_sampled_text_is_the_targets(
    shape: str,
    price: float,
    rule: AcceptanceRule,
    sampled: bool,
    model: ToyModel,
    draft: ToyModel,
    prompt: Sequence[int],
) -> None:
    pair = Pair(draft, shape=shape, price=price, sampled=sampled)
    found = distribution_of(model, pair, rule, prompt=prompt, count=4)
    assert gap(found, texts(model, prompt, 4)) < EXACT


@pytest.mark.nightly
@for_rules
@for_drafts
@pytest.mark.parametrize(("shape", "price"), [("flat", DEAR), ("tiles", CHEAP)])
@examples(2)
@given(draft=models())
def test_longer_sampled_text_is_the_targets(
    rule: AcceptanceRule, sampled: bool, shape: str, price: float, draft: ToyModel
) -> None:
    """The chances of acceptance that are learned in one step decide over the next ones."""
    pair = Pair(draft, shape=shape, price=price, sampled=sampled)
    found = distribution_of(MODEL, pair, rule, prompt=REPEATS, count=5)
    assert gap(found, texts(MODEL, REPEATS, 5)) < EXACT


@for_rules
@examples(6)
@given(model=models(), prompt=prompts)
def test_sampled_text_is_the_targets_without_a_draft_model(
    rule: AcceptanceRule, model: ToyModel, prompt: Sequence[int]
) -> None:
    found = distribution_of(model, Pair(None, shape="flat"), rule, prompt=prompt, count=5)
    assert gap(found, texts(model, prompt, 5)) < EXACT


@for_rules
@for_drafts
@pytest.mark.parametrize(("shape", "price"), [("flat", DEAR), ("tiles", CHEAP)])
@pytest.mark.parametrize("pairs", [{(0, 1)}, {(0, 0), (1, 2), (2, 0)}, {(0, 1), (0, 2)}])
def test_grammar_holds_and_text_is_the_targets(
    rule: AcceptanceRule, sampled: bool, shape: str, price: float, pairs: set[tuple[int, int]]
) -> None:
    pair = Pair(DRAFT, shape=shape, price=price, sampled=sampled)
    found = distribution_of(
        MODEL, pair, rule, prompt=REPEATS, count=4, constraint=Forbids(pairs, START)
    )
    wanted = undrafted(MODEL, prompt=REPEATS, count=4, constraint=Forbids(pairs, START))
    assert gap(found, wanted) < EXACT
    assert not any(set(pairwise(text)) & pairs for text in found)


@pytest.mark.nightly
@for_rules
@for_drafts
@pytest.mark.parametrize("end", [1, 2])
@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_text_ends_where_the_targets_does(
    rule: AcceptanceRule, sampled: bool, end: int, shape: str
) -> None:
    def ends(token: int) -> bool:
        return token == end

    pair = Pair(DRAFT, shape=shape, sampled=sampled)
    found = distribution_of(MODEL, pair, rule, prompt=REPEATS, count=5, ends=ends)
    assert gap(found, texts(MODEL, REPEATS, 5, ends)) < EXACT


@for_rules
@for_drafts
@examples(3)
@given(draft=models())
def test_draft_model_with_recurrent_memory_changes_nothing(
    rule: AcceptanceRule, sampled: bool, draft: ToyModel
) -> None:
    pair = Pair(draft, shape="flat", sampled=sampled, recurrent=True)
    found = distribution_of(MODEL, pair, rule, prompt=REPEATS, count=4)
    assert gap(found, texts(MODEL, REPEATS, 4)) < EXACT


@for_drafts
@pytest.mark.parametrize("draft_capacity", [4, len(REPEATS) + 1, len(REPEATS) + 3])
def test_draft_model_with_too_small_a_cache_changes_nothing(
    sampled: bool, draft_capacity: int
) -> None:
    """`ToyCache` takes no token beyond its capacity."""
    pair = Pair(DRAFT, shape="flat", sampled=sampled, draft_capacity=draft_capacity)
    found = distribution_of(MODEL, pair, BestLossless(), prompt=REPEATS, count=4)
    assert gap(found, texts(MODEL, REPEATS, 4)) < EXACT


@for_drafts
@pytest.mark.parametrize("max_draft", [1, 2, 16])
@pytest.mark.parametrize("spare", [0, 1, 3])
def test_target_with_little_room_changes_nothing(sampled: bool, max_draft: int, spare: int) -> None:
    """`ToyTarget` takes no larger tree, and no token beyond its capacity."""
    pair = Pair(
        DRAFT,
        shape="tiles",
        sampled=sampled,
        max_draft=max_draft,
        capacity=len(REPEATS) + 4 + spare,
    )
    found = distribution_of(MODEL, pair, BestLossless(), prompt=REPEATS, count=4)
    assert gap(found, texts(MODEL, REPEATS, 4)) < EXACT


@pytest.mark.nightly
@for_drafts
def test_what_is_compared_above_drafts_in_every_way(sampled: bool) -> None:
    """Chains of several tokens, of the model's, of the n-gram's, and of both; several lengths."""
    trees = [
        tree
        for shape in SHAPES
        for price in (CHEAP, DEAR)
        for tree in seen_trees(
            MODEL, Pair(DRAFT, shape=shape, price=price, sampled=sampled), prompt=REPEATS, count=5
        )
    ]
    assert {len(tree) for tree in trees} >= {0, 1, 2, 3}
    sources = {tuple(tree.sources) for tree in trees}
    assert any(set(kinds) == {"model"} and len(kinds) > 1 for kinds in sources)
    assert any(set(kinds) == {"model", "ngram"} for kinds in sources)
    drawn = {q is not None for tree in trees for q in tree.proposals if "model" in tree.sources}
    assert (True in drawn) is sampled
    assert all(tree.is_chain() for tree in trees)


class DropsPoorTokens(Policy):
    """Leaves a drawn token out because it turned out improbable, and what follows it."""

    def draft(self, session: Session, plan: Plan) -> Draft:
        draft, tree, node = super().draft(session, plan), TokenTree(), ROOT
        drawn = draft.tree
        for token, q, source in zip(drawn.tokens, drawn.proposals, drawn.sources, strict=True):
            if q is not None and q.prob(token) < 0.45:
                break
            node = tree.add(token, node, source, q)
        return draft._replace(tree=tree)


class ClaimsToHaveDrawn(Policy):
    """Takes the most probable token, and gives it out as drawn."""

    def draft(self, session: Session, plan: Plan) -> Draft:
        draft, tree = super().draft(session, plan), TokenTree()
        drawn = draft.tree
        for token, q in zip(drawn.tokens[:1], drawn.proposals, strict=False):
            best = token if q is None else int(q.ids[q.probs.argmax()])
            tree.add(best, ROOT, drawn.sources[0], q)
        return draft._replace(tree=tree)


@pytest.mark.nightly
@for_rules
@pytest.mark.parametrize("broken", [DropsPoorTokens, ClaimsToHaveDrawn])
def test_broken_policy_is_found_out(rule: AcceptanceRule, broken: type[Policy]) -> None:
    for kind, wrong in ((Policy, False), (broken, True)):
        pair = Pair(DRAFT, shape="flat", kind=kind)
        found = distribution_of(MODEL, pair, rule, prompt=REPEATS, count=4)
        difference = gap(found, texts(MODEL, REPEATS, 4))
        assert difference > WRONG if wrong else difference < EXACT


def test_it_answers_to_the_drafters_protocol() -> None:
    pair = Pair(DRAFT, shape="flat")
    drafter: Drafter = pair.build(greedy=False)[1]
    assert drafter.native_seconds == 0.0
    drafter.begin(REPEATS)
    assert isinstance(pair.cache, ToyCache)
    assert pair.cache.tokens == list(REPEATS[:-1])
    assert drafter.native_seconds == 1.0
