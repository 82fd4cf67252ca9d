"""Acceptance rules: numbers of accepted tokens, selection by name, and lossy rules."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
    Verdict,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Plan
from localspec.decoding.rules import CRITERIA, DELTA, LOSSLESS, LOSSY, acceptance_rule
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import UsageError
from tests.decoding.exact import EXACT, drafted, model_drafter, verify
from tests.support.toys import (
    GREEDY,
    SIZE,
    START,
    EnumeratingSource,
    ForbiddenPairs,
    ToyModel,
    ToySource,
    chosen_chain,
    drawn_chain,
    enumerate_outcomes,
    examples,
    leaves,
    models,
    with_start,
)

PAPER_TARGET = with_start([1 / 3, 2 / 3, 0])
PAPER_DRAFT = with_start([2 / 3, 1 / 3, 0])
"""The motivating example of Sun et al. 2024, section 2."""


def mean_accepted(rule: AcceptanceRule, model: ToyModel, source: Source, plan: Plan) -> float:
    """Exact mean of the accepted tokens of a step."""
    found = leaves(lambda random: len(verify(random, model, source, plan, rule)[0].path))
    return sum(accepted * weight for accepted, weight in found)


def tree_of(*nodes: tuple[int, int]) -> ToySource:
    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        for token, parent in nodes:
            tree.add(token, parent, "toy")

    return ToySource(propose)


@examples(30)
@given(model=models(), draft=models())
def test_one_token_is_accepted_with_the_overlap(model: ToyModel, draft: ToyModel) -> None:
    p, q = model.probabilities([START, 0]), draft.probabilities([START, 0])
    overlap = sum(map(min, p, q))
    for rule in (SpeculativeSampling(), BlockVerification()):
        found = mean_accepted(rule, model, drawn_chain(draft), Plan("toy", depth=1))
        assert found == pytest.approx(overlap, abs=EXACT)


@examples(40)
@given(model=models(), draft=models(), depth=st.integers(1, 3))
def test_block_accepts_as_many_as_token_rule(model: ToyModel, draft: ToyModel, depth: int) -> None:
    plan = Plan("toy", depth=depth)
    block = mean_accepted(BlockVerification(), model, drawn_chain(draft), plan)
    token = mean_accepted(SpeculativeSampling(), model, drawn_chain(draft), plan)
    assert block >= token - EXACT


def test_block_verification_reproduces_the_example_of_its_paper() -> None:
    plan = Plan("toy", depth=2)
    block = mean_accepted(BlockVerification(), PAPER_TARGET, drawn_chain(PAPER_DRAFT), plan)
    token = mean_accepted(SpeculativeSampling(), PAPER_TARGET, drawn_chain(PAPER_DRAFT), plan)
    assert token == pytest.approx(10 / 9, abs=1e-6)
    assert block == pytest.approx(11 / 9, abs=1e-6)


def test_candidates_are_tested_in_the_order_of_drawing() -> None:
    certain = with_start([0, 0, 1])
    tree = tree_of((1, ROOT), (2, ROOT), (0, ROOT), (2, 1), (1, 3))
    for rule in (SpeculativeSampling(), GreedyMatch()):
        verdict, _ = verify(EnumeratingSource(), certain, tree, Plan("toy", depth=3), rule)
        assert verdict == Verdict([1, 3], 2, [0, 1, 3, 4])


@pytest.mark.parametrize("rule", [SpeculativeSampling(), BlockVerification(), GreedyMatch()])
def test_tokens_after_the_first_rejection_are_untested(rule: AcceptanceRule) -> None:
    certain = with_start([[0, 1, 0], [0, 0, 1], [1, 0, 0]])  # 0 1 2 0 1 2 …
    plan = Plan("toy", depth=4)
    verdict, _ = verify(EnumeratingSource(), certain, chosen_chain([1, 0, 0, 1]), plan, rule)
    assert verdict == Verdict([0], 2, [0, 1])


def test_distributions_that_differ_in_the_last_bits() -> None:
    """A surplus of p over q as small as 1e-18 vanishes when 1 is added to it and taken off."""
    model, draft = with_start([1.0, 3e-18, 0.0]), with_start([1.0, 1e-18, 0.0])
    for rule in (SpeculativeSampling(), BlockVerification()):
        found = mean_accepted(rule, model, drawn_chain(draft), Plan("toy", depth=2))
        assert found == pytest.approx(2.0, abs=EXACT)


@pytest.mark.parametrize("name", LOSSLESS + LOSSY)
@pytest.mark.parametrize("greedy", [False, True])
def test_rules_by_name(name: str, greedy: bool) -> None:
    rule = acceptance_rule(name, greedy=greedy)
    assert rule.lossless == (name in LOSSLESS)
    usual = name.replace("auto", "match")
    assert rule.name == ("greedy" if greedy and name in LOSSLESS else usual)
    assert rule.trees == (rule.name != "block")


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(UsageError, match="no acceptance rule 'strict'") as caught:
        acceptance_rule("strict", greedy=False)
    assert all(name in str(caught.value) for name in LOSSLESS + LOSSY)


def is_typical(probs: list[float], token: int, epsilon: float) -> tuple[float, float]:
    entropy = sum(-p * math.log(p) for p in probs if p > 0)
    return probs[token], min(epsilon, DELTA * math.exp(-entropy))


def better(probs: list[float], token: int) -> list[float]:
    return [p for p in probs if p > probs[token]]


DEFINITIONS: dict[str, Callable[[list[float], int, float], tuple[float, float]]] = {
    "typical": is_typical,
    "top-k": lambda probs, token, k: (k, len(better(probs, token)) + 0.5),
    "top-p": lambda probs, token, mass: (mass, sum(better(probs, token))),
    "threshold": lambda probs, token, least: (probs[token], least),
}
"""A token that is possible stays if the first number is larger than the second."""


@pytest.mark.parametrize("name", LOSSY)
@examples(80)
@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    threshold=st.floats(0.01, 1.0),
)
def test_lossy_rules_follow_definitions(name: str, weights: list[int], threshold: float) -> None:
    p = Distribution.normalised(np.arange(len(weights), dtype=np.int32), np.array(weights, float))
    value = round(1 + 4 * threshold) if name == "top-k" else threshold
    for token, probability in enumerate(p.probs.tolist()):
        large, small = DEFINITIONS[name](p.probs.tolist(), token, value)
        if abs(large - small) > EXACT:
            wanted = probability > 0.0 and large > small
            assert CRITERIA[name][0](p, token, value) == wanted


def test_first_good_candidate_of_each_level_is_accepted() -> None:
    model = with_start([[0.1, 0.3, 0.6], [0.5, 0.4, 0.1], [0.2, 0.7, 0.1]])
    # The same at two levels, the second below each of the first.
    candidates = tree_of(*((token, parent) for parent in (ROOT, 0, 1, 2) for token in range(3)))

    def run(random: EnumeratingSource) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        rule, plan = acceptance_rule("threshold", greedy=False, threshold=0.3), Plan("toy", depth=2)
        verdict, tree = verify(random, model, candidates, plan, rule)
        return tuple(tree.path_tokens(verdict.path[-1])), tuple(verdict.tested), verdict.token

    found = enumerate_outcomes(run)
    after = {token: weight for (_, _, token), weight in found.items()}
    # After 0 token 0 is not good enough and 1 is; after 1 token 0 is. Nodes 6 … 8 hang from node 1.
    assert {(path, tested) for path, tested, _ in found} == {((1, 0), (0, 1, 6))}
    assert after == pytest.approx(dict(enumerate(model.probabilities([1, 0])[:SIZE])), abs=EXACT)


for_rules = pytest.mark.parametrize(
    ("name", "threshold"), [("typical", 0.3), ("top-k", 2), ("top-p", 0.6), ("threshold", 0.35)]
)
"""All of them take token 1 of (.5, .4, .1), and none takes token 2."""


@for_rules
def test_greedy_lossy_rules_use_temperature_1(name: str, threshold: float) -> None:
    model, plan = with_start([0.5, 0.4, 0.1]), Plan("toy", depth=3)
    rule, source = acceptance_rule(name, greedy=False, threshold=threshold), chosen_chain([1, 1, 2])
    verdict, _ = verify(EnumeratingSource(), model, source, plan, rule, params=GREEDY)
    # What the target adds is greedy all the same.
    assert verdict == Verdict([0, 1], 0, [0, 1, 2])


def test_greedy_lossy_rules_use_bias_penalties_and_grammar() -> None:
    model, plan = with_start([0.5, 0.4, 0.1]), Plan("toy", depth=2)
    rule = acceptance_rule("threshold", greedy=True, threshold=0.35)

    def path(params: SamplingParams, constraint: ForbiddenPairs | None = None) -> list[int]:
        random, source = EnumeratingSource(), chosen_chain([1, 1])
        verdict, _ = verify(random, model, source, plan, rule, params=params, constraint=constraint)
        return verdict.path

    assert path(GREEDY) == [0, 1]
    assert path(replace(GREEDY, logit_bias={1: -2.0})) == []
    assert path(replace(GREEDY, presence_penalty=2.0)) == [0], "the first 1 makes the second rarer"
    assert path(GREEDY, ForbiddenPairs({(0, 1)}, 0)) == []
    assert path(GREEDY, ForbiddenPairs({(1, 1)}, 0)) == [0]
    # Nothing can follow the accepted token, as behind the end of a grammar.
    assert path(GREEDY, ForbiddenPairs({(1, token) for token in range(SIZE + 1)}, 0)) == [0]


@pytest.mark.parametrize("name", LOSSY)
@examples(4)
@given(model=models(), draft=models())
def test_lossy_rules_may_draw_a_rejected_token(name: str, model: ToyModel, draft: ToyModel) -> None:
    """It is drawn from p, not from a residual, which the draft model's cache must support."""
    rule = acceptance_rule(name, greedy=False)
    found = drafted(model, lambda: model_drafter(draft), Plan(None, depth=2), rule)
    assert all(len(text) == 4 for text in found)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, 0.5, "has no threshold") for name in LOSSLESS),
        *(("top-k", value, "whole number of 1 or more") for value in (0.0, -1.0, 0.5, 2.5)),
        *(("top-k", value, "whole number of 1 or more") for value in (math.inf, math.nan)),
        *(
            (name, value, f"'{name}' must be in")
            for name in ("typical", "top-p", "threshold")
            for value in (0.0, -0.1, 1.001, math.inf, math.nan)
        ),
    ],
)
def test_bad_threshold_is_refused(name: str, value: float, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        acceptance_rule(name, greedy=True, threshold=value)
