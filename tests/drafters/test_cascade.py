"""The cascade: what it drafts is distributed as if the draft model had drawn every token itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import BlockVerification
from localspec.decoding.interfaces import Plan
from localspec.decoding.loop import drive, speculate
from localspec.decoding.random_source import SeededRandom
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import Staged
from localspec.policy.fixed import Fixed
from tests.decoding.steps import CYCLE, LIVELY, run
from tests.support.drafting import ToyDrafter, as_source, cascade_of, proposed
from tests.support.toys import (
    GREEDY,
    SIZE,
    START,
    EnumeratingSource,
    ToyCache,
    ToyModel,
    ToyTarget,
    enumerate_outcomes,
    examples,
    models,
    session_of,
    started,
)

contexts = st.lists(st.integers(0, SIZE - 1), min_size=3, max_size=9)


def cascade(cache: ToyCache, *, greedy: bool = False) -> Staged:
    return cascade_of(DraftModel(cache, cache.model.size), greedy=greedy)


def model_of(cache: ToyCache, *, greedy: bool = False) -> DraftModel:
    return as_source(DraftModel(cache, cache.model.size), greedy=greedy)


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
@examples(15)
@given(model=models(), context=contexts)
def test_draft_is_distributed_as_the_draft_models_own(
    recurrent: bool, model: ToyModel, context: list[int]
) -> None:
    plan = Plan("cascade", depth=3)

    def by_itself(random: EnumeratingSource) -> tuple[int, ...]:
        return tuple(
            proposed(model_of(ToyCache(model)), session_of(context, random=random), plan).tokens
        )

    def cascaded(random: EnumeratingSource) -> tuple[int, ...]:
        cache = ToyCache(model, recurrent=recurrent)
        session = session_of(context, random=random)
        tree = proposed(cascade(cache), session, plan)
        for node, q in enumerate(tree.proposals):
            assert q is not None
            wanted = model.distribution([*context, *tree.tokens[:node]])
            assert q.ids.tolist() == wanted.ids.tolist()
            assert q.probs == pytest.approx(wanted.probs)
        held = cache.tokens
        assert held == [*context, *tree.tokens][: len(held)], "guesses that failed are dropped"
        assert tree.is_chain()
        return tuple(tree.tokens)

    assert enumerate_outcomes(cascaded) == pytest.approx(enumerate_outcomes(by_itself), abs=1e-9)


@pytest.mark.parametrize(("depth", "passes"), [(1, 1), (2, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_right_guesses_save_passes_of_the_draft_model(depth: int, passes: int) -> None:
    """Three guesses and the row behind them give four tokens a pass."""
    cache = ToyCache(CYCLE)
    session = session_of([0, 1, 2, 0], size=3)
    tree = proposed(cascade(cache), session, Plan("cascade", depth=depth))
    assert tree.tokens == [1, 2, 0, 1, 2, 0, 1, 2, 0][:depth]
    assert cache.native_seconds == passes


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
def test_cache_stays_a_beginning_of_the_text(recurrent: bool) -> None:
    for seed in range(15):
        cache = ToyCache(LIVELY, recurrent=recurrent)
        drafter = ToyDrafter(cascade(cache))
        target = ToyTarget(started([[2, 5, 3], [4, 1, 5], [1, 5, 4]]))
        session = session_of([0, 1, 2, 0, 1, START], random=SeededRandom(seed))
        drafter.begin(session.context)
        plan = Plan("cascade", depth=4, min_confidence=0.2, min_likelihood=0.1)
        requests = speculate(
            session, drafter, Fixed(plan, target.limits, trees=False), BlockVerification()
        )
        for _ in drive(session, requests, target):
            assert cache.tokens == session.context[: len(cache.tokens)]


@pytest.mark.parametrize("capacity", [3, 6, 8, 9, 12])
def test_capacity_of_the_draft_model_bounds_guesses_too(capacity: int) -> None:
    """`ToyCache` takes no token beyond it."""
    cache = ToyCache(CYCLE, capacity=capacity)
    session, source = session_of([0, 1, 2, 0], size=3, params=GREEDY, count=20), cascade(cache)
    source.begin(session.context)
    run(session, ToyTarget(CYCLE), source, Plan("cascade", depth=5))
    assert len(session.context) == 24
