"""Every registered source works by its name, with what its registration says."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import compose, sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import REGISTRY, Parts
from localspec.errors import UsageError
from localspec.policy.profile import PairProfile
from tests.decoding.steps import CYCLE, LIVELY
from tests.support.learned import learned
from tests.support.toy_heads import toy_head
from tests.support.toys import (
    AS_IS,
    GREEDY,
    ToyCache,
    ToyModel,
    ToyTarget,
    session_of,
)

PROMPT = [0, 1, 2, 0, 1]
DRAWS = {"model", "cascade", "eagle", "medusa", "mtp", "dflash", "dspark"}
"""Whose tokens are drawn from the distribution of a draft model, or of a trained head."""

for_all = pytest.mark.parametrize("name", [name for name in REGISTRY if name != "grammar"])
"""That one drafts under a grammar alone, see `test_forced.py`."""


def parts_for(name: str, model: ToyModel = CYCLE) -> Parts:
    """A draft model, or something learned, only where the registration asks for it."""
    if REGISTRY[name].needs_datastore:
        return Parts(datastore=learned([0, 1, 2] * 20))
    if REGISTRY[name].needs_head:
        return Parts(head=toy_head(REGISTRY[name].needs_head, model))
    if not REGISTRY[name].needs_model:
        return Parts()
    return Parts(DraftModel(ToyCache(model), model.size))


def answer(
    drafting: Drafting,
    parts: Parts,
    *,
    model: ToyModel = CYCLE,
    prompt: Sequence[int] = PROMPT,
    params: SamplingParams = GREEDY,
) -> list[Step]:
    """The steps of an answer, composed as the engine composes it."""
    session = session_of(prompt, size=model.size, params=params, random=SeededRandom(1), count=30)
    rule = GreedyMatch() if params.greedy else BestLossless()
    target = ToyTarget(model)
    planner, drafter = compose(
        drafting,
        parts,
        PairProfile(),
        target.limits,
        greedy=params.greedy,
        trees=rule.trees,
        cannot=None,
    )
    drafter.begin(prompt)
    steps = list(drive(session, speculate(session, drafter, planner, rule), target))
    assert len(session.context) == len(prompt) + 30
    return steps


def counted(steps: Sequence[Step]) -> GenerationStats:
    stats = GenerationStats()
    for step in steps:
        stats.add(step)
    return stats


@for_all
def test_source_works_by_name(name: str) -> None:
    steps = answer(Drafting(drafter=name, depth=4), parts_for(name))
    assert {step.plan.drafter for step in steps[1:-1]} == {name}
    stats = counted(steps)
    assert stats.acceptance_rate == 1.0
    assert stats.tokens_per_pass > 3
    assert {part for source in stats.by_drafter for part in source.split("+")} <= set(
        name.split("+")
    )


@for_all
def test_source_by_name_drafts_as_far_as_it_is_registered(name: str) -> None:
    steps = answer(Drafting(drafter=name), parts_for(name))
    depth = REGISTRY[name].depth
    assert max(step.plan.depth for step in steps) == depth
    assert max(step.drafted for step in steps) == depth


@for_all
@pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "greedy"])
def test_source_works_where_the_text_is_sampled(name: str, sampled: bool) -> None:
    """With `--greedy-drafts` what the draft model says is chosen, and has no q."""
    steps = answer(
        Drafting(drafter=name, depth=4, sampled=sampled),
        parts_for(name, LIVELY),
        model=LIVELY,
        params=AS_IS,
    )
    assert counted(steps).accepted > 0
    for step in steps:
        for source, q in zip(step.tree.sources, step.tree.proposals, strict=True):
            assert (q is not None) == (sampled and source in DRAWS)


@for_all
def test_only_sources_that_need_a_model_ask_it(name: str) -> None:
    registration = REGISTRY[name]
    if not (registration.needs_model or registration.needs_head):
        assert registration.build(parts_for(name)).native_seconds == 0.0
        return
    needed = f"trained head ({name})" if registration.needs_head else "draft model"
    with pytest.raises(UsageError, match=re.escape(f"'{name}' needs a {needed}")):
        answer(Drafting(drafter=name), Parts())
    with pytest.raises(AssertionError):
        registration.build(Parts())
    parts = parts_for(name)
    answer(Drafting(drafter=name, depth=4), parts)
    model = parts.model or parts.head
    assert model is not None
    assert model.cache.native_seconds > 0


def test_windows_and_two_sources_together_take_no_part_in_auto() -> None:
    lookups, models = sources(Parts())
    assert ([source.name for source in lookups], models) == (["ngram", "grammar"], [])
    lookups, models = sources(parts_for("model"))
    assert [source.name for source in lookups] == ["ngram", "grammar"]
    assert [source.name for source in models] == ["model"]
