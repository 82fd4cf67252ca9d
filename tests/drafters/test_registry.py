"""Every drafter that can be named is built, runs, and is what its name says."""

from __future__ import annotations

import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import Plan
from localspec.decoding.loop import speculate
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import Sampler, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import REGISTRY, Parts
from localspec.planning.planner import Fixed
from tests.support.toys import AS_IS, GREEDY, ToyCache, ToyModel, ToyTarget, never, started

CYCLE = ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""

for_all = pytest.mark.parametrize("name", REGISTRY)


def parts_for(name: str, model: ToyModel = CYCLE, *, greedy: bool = False) -> Parts:
    """A draft model only where the registration asks for one."""
    if not REGISTRY[name].needs_model:
        return Parts(greedy=greedy)
    return Parts(DraftModel(ToyCache(model), model.size), greedy=greedy)


def run(
    name: str, model: ToyModel, prompt: list[int], params: SamplingParams, parts: Parts
) -> GenerationStats:
    session = Session(
        prompt, Sampler(params, model.size), SeededRandom(1), limit=len(prompt) + 30, ends=never
    )
    drafter = REGISTRY[name].build(parts)
    drafter.begin(prompt)
    rule = GreedyMatch() if params.greedy else BestLossless()
    planner, stats = Fixed(Plan(name, depth=4)), GenerationStats()
    for step in speculate(session, ToyTarget(model), {name: drafter}, planner, rule):
        stats.add(step)
    assert len(session.context) == len(prompt) + 30
    return stats


@for_all
def test_drafter_has_the_name_it_is_registered_by_and_a_description(name: str) -> None:
    assert REGISTRY[name].build(parts_for(name)).name == name
    assert REGISTRY[name].about


@for_all
def test_drafter_runs_and_drafts(name: str) -> None:
    stats = run(name, CYCLE, [0, 1, 2, 0, 1], GREEDY, parts_for(name))
    assert stats.acceptance_rate == 1.0
    assert stats.tokens_per_pass > 3
    assert {part for source in stats.by_drafter for part in source.split("+")} <= set(
        name.split("+")
    )


@for_all
@pytest.mark.parametrize("greedy", [False, True], ids=["drawn", "greedy"])
def test_drafter_runs_where_the_text_is_sampled(name: str, greedy: bool) -> None:
    model = started([[5, 3, 2], [1, 5, 4], [4, 1, 5]])
    stats = run(name, model, [0, 1, 2, 0, 1], AS_IS, parts_for(name, model, greedy=greedy))
    assert stats.accepted > 0


@for_all
def test_drafters_with_the_same_parts_share_them(name: str) -> None:
    parts = parts_for(name)
    first, second = ([0, 1, 2] * 3), ([0, 1, 2] * 5)
    run(name, CYCLE, first, GREEDY, parts)
    run(name, CYCLE, second, GREEDY, parts)
    if parts.model is not None:
        cache = parts.model.cache
        assert isinstance(cache, ToyCache)
        for length in range(1, len(second)):
            assert cache.decoded.count(tuple(second[:length])) == 1, "the first text had it"


@for_all
def test_only_drafters_that_need_a_model_ask_it(name: str) -> None:
    registration = REGISTRY[name]
    if not registration.needs_model:
        assert registration.build(Parts()).native_seconds == 0.0
        return
    with pytest.raises(AssertionError):
        registration.build(Parts())
    parts = parts_for(name)
    run(name, CYCLE, [0, 1, 2, 0, 1], GREEDY, parts)
    assert parts.model is not None
    assert parts.model.cache.native_seconds > 0
