"""The lossy rules: each accepts exactly what its definition says, and never hides what it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.distribution import Distribution
from localspec.decoding.interfaces import Plan
from localspec.decoding.lossy import (
    ConfidenceThreshold,
    LossyRule,
    TopKMembership,
    TopPMembership,
    TypicalAcceptance,
    lossy_rule,
)
from localspec.decoding.rules import LOSSY
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.errors import UsageError
from tests.decoding.exact import EXACT, drafted, gap, model_drafter, texts, verify
from tests.support.toys import (
    GREEDY,
    SIZE,
    EnumeratingSource,
    Forbids,
    ToyModel,
    ToySource,
    chosen_chain,
    drawn_chain,
    enumerate_outcomes,
    examples,
    models,
    started,
)

weights = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)
chance = st.floats(0.01, 1.0)


def spread(values: list[int]) -> Distribution:
    return Distribution.normalised(np.arange(len(values), dtype=np.int32), np.array(values, float))


@examples(80)
@given(values=weights, epsilon=chance, delta=chance)
def test_typical_acceptance_compares_with_the_entropy(
    values: list[int], epsilon: float, delta: float
) -> None:
    p = spread(values)
    entropy = sum(-x * math.log(x) for x in p.probs.tolist() if x > 0)
    for token, x in enumerate(p.probs.tolist()):
        bound = min(epsilon, delta * math.exp(-entropy))
        if abs(x - bound) > EXACT:
            assert TypicalAcceptance(epsilon, delta).good_enough(p, token) == (x > bound)


@examples(80)
@given(values=weights, k=st.integers(1, 5))
def test_top_k_membership_counts_the_tokens_that_are_more_probable(
    values: list[int], k: int
) -> None:
    p = spread(values)
    for token, value in enumerate(values):
        better = sum(other > value for other in values)
        assert TopKMembership(k).good_enough(p, token) == (value > 0 and better < k)


@examples(80)
@given(values=weights, mass=chance)
def test_top_p_membership_adds_up_the_tokens_that_are_more_probable(
    values: list[int], mass: float
) -> None:
    p = spread(values)
    for token, value in enumerate(values):
        better = sum(other for other in values if other > value) / sum(values)
        if abs(better - mass) > EXACT:
            assert TopPMembership(mass).good_enough(p, token) == (value > 0 and better < mass)


@examples(80)
@given(values=weights, probability=chance)
def test_confidence_threshold_takes_what_is_at_least_as_probable(
    values: list[int], probability: float
) -> None:
    p = spread(values)
    for token, x in enumerate(p.probs.tolist()):
        assert ConfidenceThreshold(probability).good_enough(p, token) == (x >= probability)


@pytest.mark.parametrize("name", LOSSY)
def test_token_that_the_target_cannot_say_is_never_good_enough(name: str) -> None:
    p = Distribution.certain(3)
    assert not lossy_rule(name, None).good_enough(p, 2)
    assert lossy_rule(name, None).good_enough(p, 3)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_rule_says_so(name: str) -> None:
    rule = lossy_rule(name, None)
    assert rule.name == name
    assert not rule.lossless
    assert rule.trees


def candidates(*tokens: int) -> ToySource:
    """Proposes the same candidates at two levels, the second below each of the first."""

    def propose(session: Session, plan: Plan, tree: TokenTree) -> None:
        for node in [tree.add(token, ROOT, "toy") for token in tokens]:
            for token in tokens:
                tree.add(token, node, "toy")

    return ToySource(propose)


def test_first_good_candidate_of_each_level_stays_and_the_target_goes_on_from_there() -> None:
    model = started([[0.1, 0.3, 0.6], [0.5, 0.4, 0.1], [0.2, 0.7, 0.1]])

    def run(random: EnumeratingSource) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        rule, plan = ConfidenceThreshold(0.3), Plan("toy", depth=2)
        verdict, tree = verify(random, model, candidates(0, 1, 2), plan, rule)
        return tuple(tree.path_tokens(verdict.path[-1])), tuple(verdict.tested), verdict.token

    found = enumerate_outcomes(run)
    after = {token: weight for (_, _, token), weight in found.items()}
    # After 0 token 0 is not good enough and 1 is; after 1 token 0 is. Nodes 6 … 8 hang from node 1.
    assert {(path, tested) for path, tested, _ in found} == {((1, 0), (0, 1, 6))}
    assert after == pytest.approx(dict(enumerate(model.probabilities([1, 0])[:SIZE])), abs=EXACT)


RULES: list[Callable[[], LossyRule]] = [
    lambda: TypicalAcceptance(0.3, 1.0),
    lambda: TopKMembership(2),
    lambda: TopPMembership(0.6),
    lambda: ConfidenceThreshold(0.35),
]
"""All of them take token 1 of (.5, .4, .1), and none takes token 2."""


@pytest.mark.parametrize("make", RULES)
def test_at_temperature_0_tokens_are_judged_at_temperature_1(make: Callable[[], LossyRule]) -> None:
    model, plan = started([0.5, 0.4, 0.1]), Plan("toy", depth=3)
    verdict, _ = verify(
        EnumeratingSource(), model, chosen_chain([1, 1, 2]), plan, make(), params=GREEDY
    )
    assert verdict.path == [0, 1]
    assert verdict.tested == [0, 1, 2]
    assert verdict.token == 0, "what the target adds is greedy all the same"


def test_at_temperature_0_bias_penalties_and_grammar_are_judged_too() -> None:
    model, plan, rule = started([0.5, 0.4, 0.1]), Plan("toy", depth=2), ConfidenceThreshold(0.35)

    def path(params: SamplingParams, constraint: Forbids | None = None) -> list[int]:
        random, source = EnumeratingSource(), chosen_chain([1, 1])
        verdict, _ = verify(random, model, source, plan, rule, params=params, constraint=constraint)
        return verdict.path

    assert path(GREEDY) == [0, 1]
    assert path(replace(GREEDY, logit_bias={1: -2.0})) == []
    assert path(replace(GREEDY, presence_penalty=2.0)) == [0], "the first 1 makes the second rarer"
    assert path(GREEDY, Forbids({(0, 1)}, 0)) == []
    assert path(GREEDY, Forbids({(1, 1)}, 0)) == [0]


@pytest.mark.parametrize("make", RULES)
def test_lossy_rule_changes_what_is_said(make: Callable[[], LossyRule]) -> None:
    """Which is why it has to be asked for; the lossless checks would not let it pass."""
    model, draft = started([0.5, 0.4, 0.1]), started([0.2, 0.7, 0.1])
    found = drafted(model, lambda: drawn_chain(draft), Plan(None, depth=2), make())
    assert gap(found, texts(model)) > 0.01


@pytest.mark.parametrize("name", LOSSY)
@examples(4)
@given(model=models(), draft=models())
def test_token_of_the_target_may_repeat_a_rejected_one(
    name: str, model: ToyModel, draft: ToyModel
) -> None:
    """It is drawn from p, not from a residual; the draft model's cache has to bear that."""
    plan, rule = Plan(None, depth=2), lossy_rule(name, None)
    found = drafted(model, lambda: model_drafter(draft), plan, rule)
    assert all(len(text) == 4 for text in found)


@pytest.mark.parametrize(
    ("name", "value", "attribute"),
    [
        ("typical", 0.2, "epsilon"),
        ("top-k", 5.0, "k"),
        ("top-p", 1.0, "mass"),
        ("threshold", 0.01, "probability"),
    ],
)
def test_threshold_replaces_the_default(name: str, value: float, attribute: str) -> None:
    assert getattr(lossy_rule(name, value), attribute) == value
    assert getattr(lossy_rule(name, None), attribute) != value


@pytest.mark.parametrize("value", [0.0, -1.0, 0.5, 2.5, math.inf, math.nan])
def test_bad_k_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="whole number of 1 or more"):
        lossy_rule("top-k", value)


@pytest.mark.parametrize("name", ["typical", "top-p", "threshold"])
@pytest.mark.parametrize("value", [0.0, -0.1, 1.001, math.inf, math.nan])
def test_bad_threshold_is_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"'{name}' lies in"):
        lossy_rule(name, value)
