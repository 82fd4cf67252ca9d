"""Drafters by options, and every source by its name."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import Limits, Plan, Step
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import compose, sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import REGISTRY, Parts
from localspec.errors import UsageError
from localspec.policy.profile import PairProfile
from tests.decoding.exact import CYCLE, LIVELY
from tests.drafters.composed import steps_of
from tests.policy.measuring import profile_of
from tests.support.learned import learned
from tests.support.toy_heads import toy_head
from tests.support.toys import AS_IS, GREEDY, ToyCache, ToyModel, session_of, with_start

LIMITS = Limits(capacity=64, max_draft=32, max_leaves=16)


def pair() -> Parts:
    return Parts(DraftModel(ToyCache(with_start([1, 2, 3])), 4))


@pytest.mark.parametrize(
    "shape", [{"depth": 3}, {"width": 2}, {"min_confidence": 0.1}, {"min_likelihood": 0.1}], ids=str
)
def test_any_shape_forces_a_drafter(shape: dict[str, Any]) -> None:
    """The draft model or trained head where there is one, else the n-gram."""
    drafting = Drafting(**shape)
    head = Parts(head=toy_head("eagle", CYCLE))
    for parts, name in ((pair(), "model"), (Parts(), "ngram"), (head, "eagle")):
        usual = {"depth": REGISTRY[name].depth, "reason": "fixed by option"}
        at = session_of([1], params=GREEDY)
        drafter = compose(drafting, parts, PairProfile(), LIMITS, at, GreedyMatch())
        assert drafter.plan(at) == Plan(name, **{**usual, **shape})


@pytest.mark.parametrize(
    ("drafting", "rule", "greedy", "branches", "drawn"),
    [
        (Drafting(), GreedyMatch(), True, True, False),
        (Drafting(), BlockVerification(), True, False, False),
        (Drafting(), SpeculativeSampling(), False, False, True),
        (Drafting(sampled=False), SpeculativeSampling(), False, False, False),
    ],
    ids=["greedy", "greedy, a rule for chains", "sampled", "sampled, chosen drafts"],
)
def test_answer_and_rule_determine_branches_and_draws(
    drafting: Drafting, rule: AcceptanceRule, greedy: bool, branches: bool, drawn: bool
) -> None:
    parts = pair()
    at = session_of([1], params=GREEDY if greedy else AS_IS, count=20)
    drafter = compose(drafting, parts, profile_of([1.0] * 8), LIMITS, at, rule)
    # A calibration after the prompt lists the sources, too.
    assert [model.greedy for model in sources(parts)[1]] == [not drafting.sampled]
    drafter.begin(at.context)
    tree = drafter.draft(at, drafter.plan(at)).tree
    assert tree.sources[0] == "model"
    assert tree.is_chain() is not branches
    assert any(q is not None for q in tree.proposals) is drawn


PROMPT = [0, 1, 2, 0, 1]
DRAWS = {"model", "cascade", "eagle", "medusa", "mtp", "dflash", "dspark"}
"""Sources that draw tokens from a distribution."""

for_all = pytest.mark.parametrize("name", [name for name in REGISTRY if name != "grammar"])
""""grammar" drafts only with a grammar, see `test_forced.py`."""


def parts_for(name: str, model: ToyModel = CYCLE) -> Parts:
    """The parts that a registration needs."""
    if REGISTRY[name].needs_datastore:
        return Parts(datastore=learned([0, 1, 2] * 20))
    if REGISTRY[name].needs_head:
        return Parts(head=toy_head(REGISTRY[name].needs_head, model))
    if not REGISTRY[name].needs_model:
        return Parts()
    return Parts(DraftModel(ToyCache(model), model.size))


def answer(
    drafting: Drafting, parts: Parts, model: ToyModel = CYCLE, params: SamplingParams = GREEDY
) -> list[Step]:
    return steps_of(drafting, parts, PairProfile(), model, PROMPT, 30, params)


def statistics_of(steps: Sequence[Step]) -> GenerationStats:
    stats = GenerationStats()
    for step in steps:
        stats.add(step)
    return stats


@for_all
def test_source_works_by_name(name: str) -> None:
    steps = answer(Drafting(drafter=name), parts_for(name))
    assert {step.plan.drafter for step in steps[1:-1]} == {name}
    assert max(step.drafted for step in steps) == REGISTRY[name].depth
    stats = statistics_of(steps)
    assert stats.acceptance_rate == 1.0
    assert stats.tokens_per_pass >= 3
    assert {part for source in stats.by_drafter for part in source.split("+")} <= set(
        name.split("+")
    )


@for_all
@pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "greedy"])
def test_source_works_with_sampled_text(name: str, sampled: bool) -> None:
    """With `--greedy-drafts` tokens are chosen and have no q."""
    drafting = Drafting(drafter=name, depth=4, sampled=sampled)
    steps = answer(drafting, parts_for(name, LIVELY), LIVELY, AS_IS)
    assert statistics_of(steps).accepted > 0
    for step in steps:
        for source, q in zip(step.tree.sources, step.tree.proposals, strict=True):
            assert (q is not None) == (sampled and source in DRAWS)


@for_all
def test_missing_models_are_named(name: str) -> None:
    registration = REGISTRY[name]
    if registration.needs_model or registration.needs_head:
        needed = f"trained head ({name})" if registration.needs_head else "draft model"
        with pytest.raises(UsageError, match=re.escape(f"'{name}' needs a {needed}")):
            answer(Drafting(drafter=name), Parts())
