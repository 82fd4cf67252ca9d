"""The cascade: what it drafts is distributed as if the draft model had drawn every token itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import AcceptanceRule, BlockVerification, SpeculativeSampling
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import Plan
from localspec.decoding.loop import speculate
from localspec.decoding.occurrences import Occurrences
from localspec.decoding.random_source import SeededRandom
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.named import Staged
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.policy.fixed import Fixed
from tests.decoding.exact import EXACT, drafted, gap, texts
from tests.decoding.steps import run
from tests.support.drafting import ToyDrafter, cascade_of, proposed
from tests.support.toys import (
    AS_IS,
    GREEDY,
    SIZE,
    START,
    EnumeratingSource,
    Forbids,
    ToyCache,
    ToyModel,
    ToyTarget,
    enumerate_outcomes,
    examples,
    models,
    session_of,
    started,
)

CYCLE = ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""
LIVELY = started([[5, 3, 2], [1, 5, 4], [4, 1, 5]])

contexts = st.lists(st.integers(0, SIZE - 1), min_size=3, max_size=9)


def cascade(cache: ToyCache, *, greedy: bool = False) -> Staged:
    return cascade_of(DraftModel(cache, cache.model.size), greedy=greedy)


def model_of(cache: ToyCache, *, greedy: bool = False) -> DraftModelSource:
    return DraftModelSource(DraftModel(cache, cache.model.size), greedy=greedy)


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


@examples(30)
@given(model=models(), context=contexts, depth=st.integers(1, 5))
def test_greedy_draft_is_the_draft_models_own(
    model: ToyModel, context: list[int], depth: int
) -> None:
    plan = Plan("cascade", depth=depth)
    session = session_of(context, params=GREEDY)
    tree = proposed(cascade(ToyCache(model)), session, plan)
    assert tree.tokens == proposed(model_of(ToyCache(model)), session, plan).tokens
    assert set(tree.proposals) == {None}
    assert set(tree.sources) == {"cascade"}


@examples(30)
@given(model=models(), context=contexts, depth=st.integers(1, 5))
def test_greedy_drafts_of_sampled_text_are_the_models_most_probable_tokens(
    model: ToyModel, context: list[int], depth: int
) -> None:
    """Chosen, so without q, and without asking chance."""
    plan, random = Plan("cascade", depth=depth), EnumeratingSource()
    session = session_of(context, random=random)
    tree = proposed(cascade(ToyCache(model), greedy=True), session, plan)
    assert tree.tokens == proposed(model_of(ToyCache(model), greedy=True), session, plan).tokens
    for node, token in enumerate(tree.tokens):
        probs = model.probabilities([*context, *tree.tokens[:node]])
        assert probs[token] == probs.max()
    assert tree.proposals == [None] * depth
    assert (random.weight, random.next_script()) == (1.0, None)


@pytest.mark.parametrize(
    "rule", [SpeculativeSampling(), BlockVerification()], ids=lambda rule: rule.name
)
@examples(6)
@given(model=models(), draft=models(), context=contexts)
def test_greedy_drafts_are_lossless(
    rule: AcceptanceRule, model: ToyModel, draft: ToyModel, context: list[int]
) -> None:
    def build() -> Staged:
        return cascade(ToyCache(draft), greedy=True)

    prompt = [*context, START]
    found = drafted(model, build, Plan(None, depth=3), rule, prompt=prompt)
    assert gap(found, texts(model, prompt)) < EXACT


@examples(30)
@given(
    model=models(),
    context=contexts,
    confidence=st.sampled_from([0.0, 0.4, 0.7]),
    likelihood=st.sampled_from([0.0, 0.1, 0.4]),
)
def test_draft_stops_where_the_draft_models_own_would(
    model: ToyModel, context: list[int], confidence: float, likelihood: float
) -> None:
    plan = Plan("cascade", depth=4, min_confidence=confidence, min_likelihood=likelihood)
    session = session_of(context, params=GREEDY)
    tree = proposed(cascade(ToyCache(model)), session, plan)
    assert tree.tokens == proposed(model_of(ToyCache(model)), session, plan).tokens


@pytest.mark.parametrize(("depth", "passes"), [(1, 1), (2, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_right_guesses_save_passes_of_the_draft_model(depth: int, passes: int) -> None:
    """Three guesses and the row behind them give four tokens a pass."""
    cache = ToyCache(CYCLE)
    session = session_of([0, 1, 2, 0], size=3)
    tree = proposed(cascade(cache), session, Plan("cascade", depth=depth))
    assert tree.tokens == [1, 2, 0, 1, 2, 0, 1, 2, 0][:depth]
    assert cache.native_seconds == passes


def test_text_that_does_not_repeat_is_drafted_token_by_token() -> None:
    cache = ToyCache(CYCLE)
    source = Staged("cascade", model_of(cache), primer=NgramSource(NgramIndex()))
    assert len(proposed(source, session_of([0, 1], size=3), Plan("cascade", depth=4))) == 4
    assert cache.native_seconds == 4


def test_right_guesses_are_decoded_once() -> None:
    cache = ToyCache(CYCLE)
    session, source = session_of([0, 1, 2, 0], size=3, params=GREEDY, count=21), cascade(cache)
    source.begin(session.context)
    run(session, ToyTarget(CYCLE), source, Plan("cascade", depth=4))
    text = session.context
    assert cache.decoded == [tuple(text[: i + 1]) for i in range(len(cache.decoded))]


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


def test_draft_stops_behind_an_end_token_though_the_guess_goes_on() -> None:
    cache = ToyCache(CYCLE)
    session = session_of([0, 1, 2, 0], size=3)
    session.ends = lambda token: token == 2
    source = cascade(cache)
    assert proposed(source, session, Plan("cascade", depth=5)).tokens == [1, 2]
    source.committed([0, 1, 2, 0, 1, 2], {})
    assert cache.tokens == [0, 1, 2, 0, 1]


def test_guess_that_the_grammar_forbids_is_not_taken() -> None:
    constraint = Forbids({(0, 1)}, 0)

    def draft(random: EnumeratingSource) -> tuple[int, ...]:
        session = session_of([0, 1, 2, 0], random=random, constraint=constraint)
        return tuple(proposed(cascade(ToyCache(LIVELY)), session, Plan("cascade", 2)).tokens)

    found = enumerate_outcomes(draft)
    assert {tokens[0] for tokens in found} == {0, 2}
    assert all(tokens != (0, 1) for tokens in found)


def test_penalties_see_the_path_so_far() -> None:
    params = replace(AS_IS, frequency_penalty=0.7)
    context = [0, 1, 2, 0]

    def draft(random: EnumeratingSource) -> tuple[int, ...]:
        session = session_of(context, random=random, params=params)
        tree = proposed(cascade(ToyCache(LIVELY)), session, Plan("cascade", depth=3))
        for node, q in enumerate(tree.proposals):
            before = [*context, *tree.tokens[:node]]
            assert q is not None
            row = LIVELY.logits([before])[0]
            wanted = session.sampler.distribution(row, Occurrences.of(before))
            assert q.probs == pytest.approx(wanted.probs)
        return tuple(tree.tokens)

    assert len(enumerate_outcomes(draft)) == 27
