"""The promise: whatever drafts and verifies, the text is distributed as the target alone has it.

Nothing here is a statistical test. The real loop runs over toy models with a random source that
takes every possible outcome in turn, and the exact distribution over whole texts is compared with
the target's own. `test_lossless_controls` proves that the comparison can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    SampleMatch,
    SpeculativeSampling,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Plan
from localspec.decoding.rules import BestLossless
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.named import Staged
from tests.decoding.exact import (
    DRAFTERS,
    EXACT,
    cascade,
    drafted,
    gap,
    model_drafter,
    texts,
)
from tests.support.drafting import EagerNgram
from tests.support.toys import (
    SIZE,
    START,
    ToyModel,
    ToySource,
    a_case,
    chosen_chain,
    drawn_chain,
    examples,
    models,
    started,
)

tokens = st.integers(0, SIZE - 1)
prompts = st.lists(tokens, min_size=2, max_size=8).map(lambda text: [*text, START])
"""Repeats for the n-gram. START makes the first token of an answer certain: of 4, 3 are left."""

TREE_RULES = (SpeculativeSampling(), BestLossless(), SampleMatch())
for_trees = pytest.mark.parametrize("rule", TREE_RULES, ids=lambda rule: rule.name)
for_chains = pytest.mark.parametrize(
    "rule", [*TREE_RULES, BlockVerification()], ids=lambda rule: rule.name
)
for_drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())


@for_chains
@examples(10)
@given(model=models(), draft=models())
def test_chain_drawn_from_any_draft_is_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel
) -> None:
    found = drafted(model, lambda: drawn_chain(draft), Plan(None, depth=2), rule)
    assert gap(found, texts(model)) < EXACT


@pytest.mark.nightly
@for_chains
@examples(4)
@given(model=models(), draft=models())
def test_long_chain_drawn_from_any_draft_is_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel
) -> None:
    found = drafted(model, lambda: drawn_chain(draft), Plan(None, depth=3), rule, count=5)
    assert gap(found, texts(model, count=5)) < EXACT


@for_chains
@examples(10)
@given(model=models(), chosen=st.lists(tokens, min_size=1, max_size=3))
def test_chain_of_chosen_tokens_is_lossless(
    rule: AcceptanceRule, model: ToyModel, chosen: list[int]
) -> None:
    found = drafted(model, lambda: chosen_chain(chosen), Plan(None, depth=3), rule, count=5)
    assert gap(found, texts(model, count=5)) < EXACT


@pytest.mark.nightly
@for_chains
@examples(8)
@given(model=models(), draft=models(), chosen=tokens, drawn_first=st.booleans())
def test_chain_of_drawn_and_chosen_tokens_is_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel, chosen: int, drawn_first: bool
) -> None:
    def build() -> Source:
        choose, draw = chosen_chain([chosen]), drawn_chain(draft)
        if drawn_first:
            return Staged("both", draw, choose)
        return Staged("both", choose, draw)

    found = drafted(model, build, Plan(None, depth=3), rule, count=5)
    assert gap(found, texts(model, count=5)) < EXACT


@pytest.mark.nightly
@for_chains
@pytest.mark.parametrize(("confidence", "likelihood"), [(0.5, 0.0), (0.0, 0.3), (0.4, 0.25)])
@examples(6)
@given(model=models(), draft=models())
def test_chain_that_stops_where_the_draft_model_is_unsure_is_lossless(
    rule: AcceptanceRule,
    confidence: float,
    likelihood: float,
    model: ToyModel,
    draft: ToyModel,
) -> None:
    """Its length depends on the tokens drawn, which block verification has to bear."""
    plan = Plan(None, depth=3, min_confidence=confidence, min_likelihood=likelihood)
    found = drafted(model, lambda: model_drafter(draft), plan, rule, count=5)
    assert gap(found, texts(model, count=5)) < EXACT


@for_chains
@pytest.mark.parametrize("says", [[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], ids=["some", "all"])
def test_draft_of_tokens_that_the_target_never_says_is_lossless(
    rule: AcceptanceRule, says: list[float]
) -> None:
    model, draft = started(says), started([0.0, 0.25, 0.75])
    found = drafted(model, lambda: drawn_chain(draft), Plan(None, depth=2), rule)
    assert gap(found, texts(model)) < EXACT


def bushy(draft: ToyModel, levels: Sequence[Sequence[int | None]]) -> ToySource:
    """Trees that branch below *every* node, where the draft model's go on below the first only.

    `levels` lists the children of each node of the level above: None is drawn from the draft,
    without replacement among the drawn ones, a number is a chosen token.
    """

    def grow(session: Session, plan: Plan, tree: TokenTree) -> None:
        front = [ROOT]
        for children in levels[: plan.depth]:
            below: list[int] = []
            for node in front:
                q: Distribution | None
                q = draft.distribution([*session.context, *tree.path_tokens(node)])
                for chosen in children:
                    if chosen is not None:
                        below.append(tree.add(chosen, node, "toy"))
                    elif q is not None:
                        token = session.propose(q, 0 if node == ROOT else tree.depths[node])
                        below.append(tree.add(token, node, "toy", q))
                        q = q.without(token)
            front = below

    return ToySource(grow)


@for_chains
@examples(8)
@given(model=models(), draft=models(), padding=st.lists(tokens, min_size=1, max_size=2))
def test_chain_with_padding_behind_it_is_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel, padding: list[int]
) -> None:
    """Whatever fills the free slots of a pass, and whether it happens to be accepted."""

    def fill_up(session: Session, plan: Plan, tree: TokenTree) -> None:
        drawn_chain(draft).propose(session, plan, tree)
        node = tree.tip()
        for token in padding:
            node = tree.pad(token, node)

    found = drafted(model, lambda: ToySource(fill_up), Plan(None, depth=1), rule)
    assert gap(found, texts(model)) < EXACT


@pytest.mark.nightly
@for_trees
@pytest.mark.parametrize("width", [2, 3])
@examples(5)
@given(model=models(), draft=models())
def test_tree_of_the_draft_model_is_lossless(
    rule: AcceptanceRule, width: int, model: ToyModel, draft: ToyModel
) -> None:
    plan = Plan(None, depth=2, width=width)
    found = drafted(model, lambda: model_drafter(draft), plan, rule)
    assert gap(found, texts(model)) < EXACT


@for_trees
@examples(3)
@given(model=models(), draft=models(most=2))
def test_tree_with_branches_below_every_candidate_is_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel
) -> None:
    levels = [[None, None], [None, None]]
    found = drafted(model, lambda: bushy(draft, levels), Plan(None, depth=2), rule)
    assert gap(found, texts(model)) < EXACT


@pytest.mark.nightly
@for_trees
@examples(6)
@given(
    model=models(),
    draft=models(),
    first=st.permutations([None, None, 1]),
    second=st.permutations([None, 2]),
)
def test_tree_with_chosen_candidates_beside_drawn_ones_is_lossless(
    rule: AcceptanceRule,
    model: ToyModel,
    draft: ToyModel,
    first: list[int | None],
    second: list[int | None],
) -> None:
    levels = [first, second]
    found = drafted(model, lambda: bushy(draft, levels), Plan(None, depth=2), rule)
    assert gap(found, texts(model)) < EXACT


@for_trees
@examples(10)
@given(model=models(), prompt=prompts)
def test_tree_of_the_ngram_is_lossless(
    rule: AcceptanceRule, model: ToyModel, prompt: list[int]
) -> None:
    plan = Plan(None, depth=3, width=3)
    found = drafted(model, EagerNgram, plan, rule, prompt=prompt, count=5)
    assert gap(found, texts(model, prompt, 5)) < EXACT


@examples(5)
@given(model=models(), draft=models())
def test_rule_for_chains_is_lossless_where_the_plan_asks_for_branches(
    model: ToyModel, draft: ToyModel
) -> None:
    plan = Plan(None, depth=2, width=2)
    found = drafted(model, lambda: model_drafter(draft), plan, BlockVerification())
    assert gap(found, texts(model)) < EXACT


@for_drafters
@for_chains
@examples(5)
@given(model=models(), draft=models(), prompt=prompts)
def test_every_drafter_is_lossless(
    make: Callable[[ToyModel], Source],
    rule: AcceptanceRule,
    model: ToyModel,
    draft: ToyModel,
    prompt: list[int],
) -> None:
    found = drafted(model, lambda: make(draft), Plan(None, depth=2), rule, prompt=prompt)
    assert gap(found, texts(model, prompt)) < EXACT


@for_drafters
@for_trees
def test_every_drafter_is_lossless_with_several_candidates(
    make: Callable[[ToyModel], Source], rule: AcceptanceRule, request: pytest.FixtureRequest
) -> None:
    model, draft, prompt = a_case(request.node.name)
    plan = Plan(None, depth=2, width=2)
    found = drafted(model, lambda: make(draft), plan, rule, prompt=prompt)
    assert gap(found, texts(model, prompt)) < EXACT


@pytest.mark.nightly
@for_chains
@examples(5)
@given(model=models(), draft=models(), prompt=prompts)
def test_cascade_with_long_guesses_and_thresholds_is_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel, prompt: list[int]
) -> None:
    plan = Plan(None, depth=3, min_likelihood=0.15)
    found = drafted(model, lambda: cascade(draft), plan, rule, prompt=prompt, count=5)
    assert gap(found, texts(model, prompt, 5)) < EXACT
