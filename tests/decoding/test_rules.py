"""The lossless rules one by one, how many tokens they accept, and the choice between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import Plan
from localspec.decoding.rules import LOSSLESS, LOSSY, BestLossless, acceptance_rule
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import UsageError
from tests.decoding.exact import EXACT, model_drafter, verify
from tests.support.toys import (
    START,
    EnumeratingSource,
    ToyModel,
    ToySource,
    chosen_chain,
    drawn_chain,
    examples,
    expectation,
    models,
    started,
)

PAPER_TARGET = started([1 / 3, 2 / 3, 0])
PAPER_DRAFT = started([2 / 3, 1 / 3, 0])
"""The motivating example of Sun et al. 2024, section 2."""


def accepted(rule: AcceptanceRule, model: ToyModel, source: Source, plan: Plan) -> float:
    """Exact mean of the tokens that a step accepts."""
    return expectation(lambda random: len(verify(random, model, source, plan, rule)[0].path))


def tree_of(*nodes: tuple[int, int]) -> ToySource:
    """A source that proposes chosen tokens: (token, parent) each."""

    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        for token, parent in nodes:
            tree.add(token, parent, "toy")

    return ToySource(propose)


@examples(30)
@given(model=models(), draft=models())
def test_one_drawn_token_is_accepted_with_the_overlap_of_p_and_q(
    model: ToyModel, draft: ToyModel
) -> None:
    p, q = model.probabilities([START, 0]), draft.probabilities([START, 0])
    overlap = sum(map(min, p, q))
    for rule in (SpeculativeSampling(), BlockVerification(), BestLossless()):
        found = accepted(rule, model, drawn_chain(draft), Plan("toy", depth=1))
        assert found == pytest.approx(overlap, abs=EXACT)


@examples(10)
@given(model=models(), draft=models())
def test_second_candidate_never_lowers_the_acceptance(model: ToyModel, draft: ToyModel) -> None:
    rule = SpeculativeSampling()
    one, two, three = (
        accepted(rule, model, model_drafter(draft), Plan("model", depth=1, width=width))
        for width in (1, 2, 3)
    )
    assert one <= two + EXACT
    assert two <= three + EXACT


@examples(40)
@given(model=models(), draft=models(), depth=st.integers(1, 3))
def test_block_verification_never_accepts_fewer_than_token_verification(
    model: ToyModel, draft: ToyModel, depth: int
) -> None:
    plan = Plan("toy", depth=depth)
    block = accepted(BlockVerification(), model, drawn_chain(draft), plan)
    token = accepted(SpeculativeSampling(), model, drawn_chain(draft), plan)
    assert block >= token - EXACT


def test_block_verification_accepts_what_its_paper_says() -> None:
    plan = Plan("toy", depth=2)
    block = accepted(BlockVerification(), PAPER_TARGET, drawn_chain(PAPER_DRAFT), plan)
    token = accepted(SpeculativeSampling(), PAPER_TARGET, drawn_chain(PAPER_DRAFT), plan)
    assert token == pytest.approx(10 / 9, abs=1e-6)
    assert block == pytest.approx(11 / 9, abs=1e-6)


def test_candidates_are_tested_in_the_order_they_were_drawn_until_one_stays() -> None:
    certain = started([0, 0, 1])
    tree = tree_of((1, ROOT), (2, ROOT), (0, ROOT), (2, 1), (1, 3))
    for rule in (SpeculativeSampling(), GreedyMatch()):
        verdict, _ = verify(EnumeratingSource(), certain, tree, Plan("toy", depth=3), rule)
        assert verdict.path == [1, 3]
        assert verdict.tested == [0, 1, 3, 4]
        assert verdict.token == 2


@pytest.mark.parametrize("rule", [SpeculativeSampling(), BlockVerification(), GreedyMatch()])
def test_tokens_behind_the_first_rejection_are_untested(rule: AcceptanceRule) -> None:
    certain = started([[0, 1, 0], [0, 0, 1], [1, 0, 0]])  # 0 1 2 0 1 2 …
    plan = Plan("toy", depth=4)
    verdict, _ = verify(EnumeratingSource(), certain, chosen_chain([1, 0, 0, 1]), plan, rule)
    assert verdict.path == [0]
    assert verdict.tested == [0, 1]
    assert verdict.token == 2


def test_distributions_that_differ_in_the_last_bits_only_are_borne() -> None:
    """A surplus of p over q as small as 1e-18 vanishes when 1 is added to it and taken off."""
    model, draft = started([1.0, 3e-18, 0.0]), started([1.0, 1e-18, 0.0])
    for rule in (SpeculativeSampling(), BlockVerification()):
        found = accepted(rule, model, drawn_chain(draft), Plan("toy", depth=2))
        assert found == pytest.approx(2.0, abs=EXACT)


@pytest.mark.parametrize("name", LOSSLESS + LOSSY)
@pytest.mark.parametrize("greedy", [False, True])
def test_rules_are_found_by_name_and_say_what_they_are(name: str, greedy: bool) -> None:
    rule = acceptance_rule(name, greedy=greedy)
    assert rule.lossless == (name in LOSSLESS)
    assert rule.name == ("greedy" if greedy and name in LOSSLESS else name)
    assert rule.trees == (rule.name != "block")


def test_unknown_rule_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(UsageError, match="no acceptance rule 'strict'") as caught:
        acceptance_rule("strict", greedy=False)
    assert all(name in str(caught.value) for name in LOSSLESS + LOSSY)


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_rule_takes_no_threshold(name: str) -> None:
    with pytest.raises(UsageError, match="has no threshold"):
        acceptance_rule(name, greedy=False, threshold=0.5)
