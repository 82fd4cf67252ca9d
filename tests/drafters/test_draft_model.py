"""The draft model: decoding each token once, and drafts with the session's random numbers."""

from collections import Counter
from dataclasses import replace

import pytest

from localspec.decoding.acceptance import AcceptanceRule, GreedyMatch, SpeculativeSampling
from localspec.decoding.interfaces import Plan
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler, SamplingParams
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import Cascade
from tests.decoding.exact import CYCLE, LIVELY, OTHER, run
from tests.support.drafting import as_source, cascade_of, proposed
from tests.support.toys import (
    AS_IS,
    GREEDY,
    START,
    ToyCache,
    ToyModel,
    ToyTarget,
    chosen_chain,
    session_of,
    with_start,
)

PROMPT = [0, 1, 2, 0, START]


def source_of(cache: ToyCache, *, greedy: bool = False) -> DraftModel:
    return as_source(DraftModel(cache, cache.model.size), greedy=greedy)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize(
    ("params", "rule"),
    [(GREEDY, GreedyMatch()), (AS_IS, SpeculativeSampling())],
    ids=["greedy", "drawn"],
)
@pytest.mark.parametrize("confidence", [0.0, 0.6])
def test_no_verified_token_is_decoded_twice(
    params: SamplingParams, rule: AcceptanceRule, width: int, confidence: float
) -> None:
    for seed in range(10):
        cache = ToyCache(OTHER)
        session = session_of(PROMPT, params=params, random=SeededRandom(seed))
        plan = Plan("model", depth=3, width=width, min_confidence=confidence)
        run(session, ToyTarget(LIVELY), source_of(cache), plan, rule)
        times = Counter(cache.decoded)
        text = session.context
        assert all(times[tuple(text[: i + 1])] <= 1 for i in range(len(text)))
        assert cache.tokens == text[: len(cache.tokens)]
        wasted = [decoded for decoded in cache.decoded if list(decoded) != text[: len(decoded)]]
        assert len(cache.decoded) == len(cache.tokens) + len(wasted)


def test_new_prompt_keeps_the_common_prefix() -> None:
    cache = ToyCache(LIVELY)
    model = DraftModel(cache, LIVELY.size)
    model.begin([0, 1, 2, 0, 1])
    assert cache.tokens == [0, 1, 2, 0], "all but the last, which is read with the first draft"
    cache.decoded.clear()
    model.begin([0, 1, 1, 2, 2])
    assert cache.tokens == [0, 1, 1, 2]
    assert cache.decoded == [(0, 1, 1), (0, 1, 1, 2)]
    cache.decoded.clear()
    model.begin([0, 1])
    assert cache.tokens == [0]
    assert cache.decoded == []
    model.begin([2])
    assert cache.tokens == []


@pytest.mark.parametrize("capacity", [3, 5, 6, 9, 14])
def test_full_cache_ends_drafting_but_not_the_text(capacity: int) -> None:
    """`ToyCache` takes no token beyond its capacity."""
    cache = ToyCache(LIVELY, capacity=capacity)
    session = session_of(PROMPT, count=20)
    run(session, ToyTarget(LIVELY), source_of(cache), Plan("model", depth=3), SpeculativeSampling())
    assert len(session.context) == 25
    if capacity <= len(PROMPT) - 1:
        assert cache.decoded == [], "a prompt that does not fit is not read at all"
    session = session_of([0, 1, 2, 0], size=3, params=GREEDY, count=20)
    source = cascade(ToyCache(CYCLE, capacity=capacity))
    run(session, ToyTarget(CYCLE), source, Plan("cascade", depth=5))
    assert len(session.context) == 24


def test_draft_continues_that_of_another_source() -> None:
    cache = ToyCache(CYCLE)
    session = session_of([0, 1], size=3, params=GREEDY)
    both = Cascade("both", chosen_chain([2, 0], "ngram"), DraftModel(cache, 3))
    tree = proposed(both, session, Plan("model", depth=4))
    assert tree.tokens == [2, 0, 1, 2]
    assert tree.sources == ["ngram", "ngram", "model", "model"]
    assert cache.native_seconds == 2, "the other's tokens are read in one pass with the context"


STEADY = with_start([0.6, 0.3, 0.1])


@pytest.mark.parametrize(
    ("confidence", "likelihood", "depth"),
    [(0.0, 0.0, 5), (0.59, 0.0, 5), (0.61, 0.0, 0), (0.0, 0.5, 1), (0.0, 0.2, 3), (0.61, 0.2, 0)],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_low_confidence(confidence: float, likelihood: float, depth: int, greedy: bool) -> None:
    """Its best token has 0.6; 0.6² = 0.36, 0.6³ = 0.216, 0.6⁴ = 0.13."""
    plan = Plan("model", depth=5, min_confidence=confidence, min_likelihood=likelihood)
    tree = proposed(source_of(ToyCache(STEADY), greedy=greedy), session_of([START, 0]), plan)
    assert len(tree) == depth


def test_drafts_stop_after_an_end_token() -> None:
    session = session_of([0, 1], size=3, params=GREEDY)
    session.ends = lambda token: token == 0
    tree = proposed(DraftModel(ToyCache(CYCLE), 3), session, Plan("model", depth=5))
    assert tree.tokens == [2, 0]


@pytest.mark.parametrize(
    "params",
    [AS_IS, replace(AS_IS, logit_bias={4: 1.0, 1: 0.5}), replace(AS_IS, presence_penalty=0.5)],
    ids=["as it is", "bias", "penalties"],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_draft_model_with_fewer_tokens(params: SamplingParams, greedy: bool) -> None:
    """Bias and penalties may name tokens that only the target has."""
    narrow = ToyModel([[[3, 2, 1]] * 3] * 3)
    session = session_of([0, 1], size=5, params=params)
    session.sampler = Sampler(params, 5)
    source = as_source(DraftModel(ToyCache(narrow), 5), greedy=greedy)
    tree = proposed(source, session, Plan("model", depth=2))
    assert set(tree.tokens) <= {0, 1, 2}
    assert len(tree) == 2


def cascade(cache: ToyCache) -> Cascade:
    return cascade_of(DraftModel(cache, cache.model.size))


@pytest.mark.parametrize(("depth", "passes"), [(1, 1), (2, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_correct_guesses_save_passes(depth: int, passes: int) -> None:
    """Three guesses and the row after them give four tokens per pass."""
    cache = ToyCache(CYCLE)
    session = session_of([0, 1, 2, 0], size=3)
    tree = proposed(cascade(cache), session, Plan("cascade", depth=depth))
    assert tree.tokens == [1, 2, 0, 1, 2, 0, 1, 2, 0][:depth]
    assert cache.native_seconds == passes
