"""The lossless rules one by one, how many tokens they accept, and the choice between them."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
    Verification,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Plan
from localspec.decoding.rules import LOSSLESS, LOSSY, BestLossless, acceptance_rule
from localspec.decoding.sampling import Row, Rows, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import UsageError
from tests.decoding.exact import EXACT, model_drafter, verify
from tests.support.toys import (
    AS_IS,
    GREEDY,
    SIZE,
    START,
    EnumeratingSource,
    ToyModel,
    ToySource,
    chosen_chain,
    drawn_chain,
    enumerate_outcomes,
    examples,
    expectation,
    models,
    session_of,
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
@given(model=models(), token=st.integers(0, SIZE - 1))
def test_one_chosen_token_is_accepted_with_its_probability(model: ToyModel, token: int) -> None:
    p = model.probabilities([START, 0])
    for rule in (SpeculativeSampling(), BlockVerification()):
        found = accepted(rule, model, chosen_chain([token]), Plan("toy", depth=1))
        assert found == pytest.approx(p[token], abs=EXACT)


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


@examples(10)
@given(model=models(), draft=models())
def test_best_rule_is_block_verification_for_chains_and_speculative_sampling_for_trees(
    model: ToyModel, draft: ToyModel
) -> None:
    for width, same in ((1, BlockVerification()), (2, SpeculativeSampling())):
        plan = Plan("model", depth=2, width=width)

        def outcomes(rule: AcceptanceRule, plan: Plan = plan) -> dict[tuple[int, ...], float]:
            def run(random: EnumeratingSource) -> tuple[int, ...]:
                verdict, _ = verify(random, model, model_drafter(draft), plan, rule)
                return (*verdict.path, verdict.token)

            return enumerate_outcomes(run)

        assert outcomes(BestLossless()) == outcomes(same)


@pytest.mark.parametrize("rule", [SpeculativeSampling(), BlockVerification(), GreedyMatch()])
def test_empty_tree_leaves_the_token_to_the_target(rule: AcceptanceRule) -> None:
    model = started([0, 0, 1])
    verdict, _ = verify(EnumeratingSource(), model, chosen_chain([]), Plan("toy", depth=2), rule)
    assert (verdict.path, verdict.token, verdict.tested) == ([], 2, [])


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


def test_rejected_draws_are_left_out_of_what_the_target_draws_from() -> None:
    """p − q by hand: p = (.5, .3, .2), q = (.2, .5, .3); only token 0 has a surplus."""
    model, draft = started([0.5, 0.3, 0.2]), started([0.2, 0.5, 0.3])

    def run(random: EnumeratingSource) -> tuple[int, bool, int]:
        verdict, tree = verify(
            random, model, drawn_chain(draft), Plan("toy", depth=1), SpeculativeSampling()
        )
        return tree.tokens[0], bool(verdict.path), verdict.token

    found = enumerate_outcomes(run)
    rejected = {key: weight for key, weight in found.items() if not key[1]}
    assert set(rejected) == {(1, False, 0), (2, False, 0)}
    assert rejected[1, False, 0] == pytest.approx(0.5 * (1 - 0.3 / 0.5), abs=1e-6)


@pytest.mark.parametrize("rule", [SpeculativeSampling(), BlockVerification(), BestLossless()])
@examples(10)
@given(model=models(), draft=models())
def test_rejected_token_is_never_what_the_target_draws_instead(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel
) -> None:
    def run(random: EnumeratingSource) -> bool:
        verdict, tree = verify(random, model, drawn_chain(draft), Plan("toy", depth=3), rule)
        rejected = tree.tokens[len(verdict.path) : len(verdict.tested)]
        return verdict.token in rejected

    assert enumerate_outcomes(run).get(True, 0.0) < EXACT


def test_greedy_match_takes_the_first_of_tied_tokens() -> None:
    tied = started([0, 1, 1])
    tree = tree_of((2, ROOT), (1, ROOT))
    verdict, _ = verify(
        EnumeratingSource(), tied, tree, Plan("toy", depth=1), GreedyMatch(), params=GREEDY
    )
    assert (verdict.path, verdict.token) == ([1], 1)


class WatchedRows:
    """Rows of logits that can be had one at a time, and note which were."""

    def __init__(self, rows: Rows) -> None:
        self.looked_at: set[int] = set()
        self._rows = rows

    def __getitem__(self, row: int) -> Row:
        self.looked_at.add(row)
        found: Row = self._rows[row]
        return found


@pytest.mark.parametrize(
    ("rule", "params"),
    [
        (GreedyMatch(), GREEDY),
        (GreedyMatch(), SamplingParams(temperature=0.0, presence_penalty=1e-6)),
        (SpeculativeSampling(), AS_IS),
    ],
    ids=["greedy", "greedy with penalties", "token"],
)
@pytest.mark.parametrize(
    ("nodes", "looked_at"),
    [
        ([(0, ROOT), (1, 0), (2, 1), (2, ROOT), (1, 3)], {0}),
        ([(2, ROOT), (1, ROOT), (0, 0), (2, 1), (0, 1), (0, 4)], {0, 2, 4}),
        ([], {0}),
    ],
    ids=["first level rejected", "path", "nothing proposed"],
)
def test_only_rows_along_the_accepted_path_are_looked_at(
    rule: AcceptanceRule,
    params: SamplingParams,
    nodes: list[tuple[int, int]],
    looked_at: set[int],
) -> None:
    """An argmax over a vocabulary of 150,000 is not free, and most rows are behind a rejection."""
    certain = started([[0, 1, 0], [0, 0, 1], [1, 0, 0]])  # 0 1 2 0 1 2 …
    session, tree = session_of([START, 0], params=params), TokenTree()
    tree_of(*nodes).propose(session, Plan("toy", depth=3), tree)
    paths = [[], *(tree.path_tokens(node) for node in range(len(tree)))]
    rows = WatchedRows(certain.logits([[START, 0, *path] for path in paths]))
    rule.accept(Verification(cast("Rows", rows), tree, session), EnumeratingSource())
    assert rows.looked_at == looked_at


def test_second_candidate_is_tested_against_what_the_first_left_over() -> None:
    """p = (.5, .3, .2), chosen 0 then 1: 1 stays with .3 ÷ (.3 + .2) after 0 was rejected."""
    model = started([0.5, 0.3, 0.2])
    rule, tree = SpeculativeSampling(), tree_of((0, ROOT), (1, ROOT))
    found = enumerate_outcomes(
        lambda random: tuple(verify(random, model, tree, Plan("toy", depth=1), rule)[0].path)
    )
    assert found[0,] == pytest.approx(0.5, abs=1e-6)
    assert found[1,] == pytest.approx(0.5 * 0.6, abs=1e-6)
    assert found[()] == pytest.approx(0.2, abs=1e-6)


def test_equal_distributions_leave_no_residual_and_never_reject() -> None:
    model = started([0.5, 0.3, 0.2])
    for rule in (SpeculativeSampling(), BlockVerification()):
        found = accepted(rule, model, drawn_chain(model), Plan("toy", depth=3))
        assert found == pytest.approx(3.0, abs=EXACT)
    p = model.distribution([0])
    assert p.residual(Distribution(p.ids, p.probs)) is p


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
