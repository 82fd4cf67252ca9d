"""Every registered source works by its name, with what its registration says."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from localspec.decoding.interfaces import Step
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.options import Drafting
from localspec.drafters.registry import REGISTRY, Parts
from localspec.errors import UsageError
from localspec.policy.profile import PairProfile
from tests.decoding.exact import CYCLE, LIVELY
from tests.drafters.composed import steps_of
from tests.support.learned import learned
from tests.support.toy_heads import toy_head
from tests.support.toys import AS_IS, GREEDY, ToyCache, ToyModel

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
    drafting: Drafting, parts: Parts, model: ToyModel = CYCLE, params: SamplingParams = GREEDY
) -> list[Step]:
    return steps_of(drafting, parts, PairProfile(), model, PROMPT, 30, params)


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
    drafting = Drafting(drafter=name, depth=4, sampled=sampled)
    steps = answer(drafting, parts_for(name, LIVELY), LIVELY, AS_IS)
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
