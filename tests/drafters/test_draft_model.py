"""The draft model: a cache that is fed every token once, and drafts drawn as the session draws."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.acceptance import (
    AcceptanceRule,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.distribution import Distribution
from localspec.decoding.draft_sampler import DraftSampler
from localspec.decoding.interfaces import Plan
from localspec.decoding.lossy import TopKMembership
from localspec.decoding.occurrences import Occurrences
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.named import Staged
from tests.decoding.steps import run
from tests.support.drafting import proposed
from tests.support.toys import (
    AS_IS,
    GREEDY,
    START,
    EnumeratingSource,
    Forbids,
    ToyCache,
    ToyModel,
    ToyTarget,
    chosen_chain,
    enumerate_outcomes,
    examples,
    leaves,
    models,
    session_of,
    started,
)

CYCLE = ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""
LIVELY = started([[5, 3, 2], [1, 5, 4], [4, 1, 5]])
OTHER = started([[1, 2, 7], [7, 1, 2], [2, 7, 1]])
PROMPT = [0, 1, 2, 0, START]


def source_of(cache: ToyCache, *, greedy: bool = False) -> DraftModelSource:
    return DraftModelSource(DraftModel(cache, START + 1), greedy=greedy)


def generate(
    session: Session,
    target: ToyModel,
    source: DraftModelSource,
    plan: Plan,
    rule: AcceptanceRule,
) -> None:
    source.begin(session.context)
    run(session, ToyTarget(target), source, plan, rule)


# What is decoded.


def test_with_full_acceptance_every_token_is_decoded_exactly_once() -> None:
    cache = ToyCache(CYCLE)
    session = session_of([0, 1, 2], params=GREEDY, size=3, count=13)
    source = DraftModelSource(DraftModel(cache, 3))
    generate(session, CYCLE, source, Plan("model", depth=3), GreedyMatch())
    text = session.context
    # The last draft token and the target's own behind it were never read.
    assert cache.decoded == [tuple(text[: i + 1]) for i in range(len(text) - 2)]
    # Prompt; then 3 steps of 3 passes, one for each token drafted.
    assert cache.native_seconds == 1 + 3 * 3


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
        generate(session, LIVELY, source_of(cache), plan, rule)
        times = Counter(cache.decoded)
        text = session.context
        assert all(times[tuple(text[: i + 1])] <= 1 for i in range(len(text)))
        assert cache.tokens == text[: len(cache.tokens)]
        wasted = [decoded for decoded in cache.decoded if list(decoded) != text[: len(decoded)]]
        assert len(cache.decoded) == len(cache.tokens) + len(wasted)


def test_token_that_a_lossy_rule_rejects_and_the_target_draws_is_read_again() -> None:
    """The cache holds it already, but its row is gone."""
    again = 0
    for seed in range(30):
        cache = ToyCache(OTHER)
        session = session_of(PROMPT, random=SeededRandom(seed))
        plan = Plan("model", depth=3)
        generate(session, LIVELY, source_of(cache), plan, TopKMembership(1))
        times, text = Counter(cache.decoded), session.context
        again += sum(times[tuple(text[: i + 1])] > 1 for i in range(len(text)))
        assert len(text) == len(PROMPT) + 40
        assert cache.tokens == text[: len(cache.tokens)]
    assert again > 0, "it happened"


def test_what_was_rejected_is_dropped_from_the_cache() -> None:
    cache = ToyCache(CYCLE)
    source = DraftModelSource(DraftModel(cache, 3))
    session = session_of([0, 1], size=3, params=GREEDY)
    tree = proposed(source, session, Plan("model", depth=3))
    assert tree.tokens == [2, 0, 1]
    assert cache.tokens == [0, 1, 2, 0], "the last one is not read"
    session.context += [2, 2]
    source.committed(session.context, {})
    assert cache.tokens == [0, 1, 2]
    assert proposed(source, session, Plan("model", depth=1)).tokens == [0]
    assert cache.tokens == [0, 1, 2, 2]


def test_new_prompt_keeps_what_it_shares_with_the_old_text() -> None:
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


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
def test_cache_that_loses_more_than_it_was_told_is_filled_again(recurrent: bool) -> None:
    cache = ToyCache(OTHER, recurrent=recurrent)
    session = session_of(PROMPT, params=GREEDY)
    generate(session, LIVELY, source_of(cache), Plan("model", depth=3), GreedyMatch())
    assert cache.tokens == session.context[: len(cache.tokens)]
    context = session.context
    tree = proposed(source_of(cache), session_of(context, params=GREEDY), Plan("model", depth=1))
    assert tree.tokens == [int(OTHER.logits([context])[0].argmax())]


@pytest.mark.parametrize("capacity", [3, 5, 6, 9, 14])
def test_full_cache_ends_the_drafting_and_not_the_text(capacity: int) -> None:
    """`ToyCache` takes no token beyond its capacity."""
    cache = ToyCache(LIVELY, capacity=capacity)
    session = session_of(PROMPT, count=20)
    generate(session, LIVELY, source_of(cache), Plan("model", depth=3), SpeculativeSampling())
    assert len(session.context) == 25
    if capacity <= len(PROMPT) - 1:
        assert cache.decoded == [], "a prompt that does not fit is not read at all"


# What is drafted.


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_each_token_is_drawn_from_the_model_after_the_ones_before(depth: int) -> None:
    def draft(random: EnumeratingSource) -> tuple[int, ...]:
        session = session_of([START, 0], random=random)
        tree = proposed(source_of(ToyCache(OTHER)), session, Plan("model", depth=depth))
        assert tree.is_chain()
        for node, q in enumerate(tree.proposals):
            assert q is not None
            wanted = OTHER.distribution([START, 0, *tree.tokens[:node]])
            assert q.ids.tolist() == wanted.ids.tolist()
            assert q.probs == pytest.approx(wanted.probs)
        return tuple(tree.tokens)

    for tokens, weight in enumerate_outcomes(draft).items():
        wanted = 1.0
        for i, token in enumerate(tokens):
            wanted *= OTHER.distribution([START, 0, *tokens[:i]]).prob(token)
        assert weight == pytest.approx(wanted)


@examples(20)
@given(model=models(), width=st.integers(1, 4))
def test_candidates_are_drawn_without_replacement(model: ToyModel, width: int) -> None:
    row = model.logits([[START, 0]])[0]
    q = model.distribution([START, 0])

    def draft(random: EnumeratingSource) -> tuple[int, ...]:
        sampler = DraftSampler(session_of([START, 0], random=random), [], greedy=False)
        drawn = sampler.candidates(row, width)
        rest: Distribution | None = q
        for token, proposal in drawn:
            assert proposal is not None
            assert rest is not None
            assert proposal.ids.tolist() == rest.ids.tolist()
            assert proposal.probs == pytest.approx(rest.probs)
            rest = rest.without(token)
        return tuple(token for token, _ in drawn)

    for drawn, weight in enumerate_outcomes(draft).items():
        assert len(drawn) == len(set(drawn)) == min(width, len(q.ids))
        wanted, left = 1.0, 1.0
        for token in drawn:
            wanted *= q.prob(token) / left
            left -= q.prob(token)
        assert weight == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("width", "wanted"), [(1, [2]), (2, [2, 1]), (3, [2, 1, 0]), (9, [2, 1, 0])]
)
@pytest.mark.parametrize("params", [AS_IS, GREEDY], ids=["sampled", "greedy"])
def test_greedy_drafts_are_the_most_probable_tokens(
    params: SamplingParams, width: int, wanted: list[int]
) -> None:
    """Chosen, so without q, even where the session samples."""
    source = source_of(ToyCache(OTHER), greedy=True)
    session = session_of([START, 0], params=params, random=EnumeratingSource())
    tree = proposed(source, session, Plan("model", depth=1, width=width))
    assert tree.tokens == wanted
    assert set(tree.proposals) == {None}


def test_first_candidate_is_followed_and_the_others_cost_no_pass() -> None:
    cache = ToyCache(OTHER)
    tree = proposed(source_of(cache), session_of([START, 0]), Plan("model", depth=3, width=2))
    assert tree.parents == [ROOT, ROOT, 0, 0, 2, 2]
    assert cache.native_seconds == 3
    assert cache.tokens == [START, 0, tree.tokens[0], tree.tokens[2]]


def test_drafts_go_on_from_the_tip_of_another_sources() -> None:
    cache = ToyCache(CYCLE)
    session = session_of([0, 1], size=3, params=GREEDY)
    both = Staged("both", chosen_chain([2, 0], "ngram"), DraftModelSource(DraftModel(cache, 3)))
    tree = proposed(both, session, Plan("model", depth=4))
    assert tree.tokens == [2, 0, 1, 2]
    assert tree.sources == ["ngram", "ngram", "model", "model"]
    assert cache.native_seconds == 2, "the other's tokens are read in one pass with the context"


# Where drafts stop.

STEADY = started([0.6, 0.3, 0.1])


@pytest.mark.parametrize(
    ("confidence", "likelihood", "depth"),
    [(0.0, 0.0, 5), (0.59, 0.0, 5), (0.61, 0.0, 0), (0.0, 0.5, 1), (0.0, 0.2, 3), (0.61, 0.2, 0)],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_drafts_stop_where_the_model_is_unsure(
    confidence: float, likelihood: float, depth: int, greedy: bool
) -> None:
    """Its best token has 0.6; 0.6² = 0.36, 0.6³ = 0.216, 0.6⁴ = 0.13."""
    plan = Plan("model", depth=5, min_confidence=confidence, min_likelihood=likelihood)
    tree = proposed(source_of(ToyCache(STEADY), greedy=greedy), session_of([START, 0]), plan)
    assert len(tree) == depth


@pytest.mark.parametrize("params", [AS_IS, replace(AS_IS, temperature=0.2, top_k=2), GREEDY])
def test_confidence_is_the_models_own_whatever_the_sampling(params: SamplingParams) -> None:
    for confidence, depth in ((0.59, 2), (0.61, 0)):
        plan = Plan("model", depth=2, min_confidence=confidence)
        session = session_of([START, 0], params=params)
        assert len(proposed(source_of(ToyCache(STEADY)), session, plan)) == depth


def test_whether_to_stop_does_not_depend_on_the_token_that_comes() -> None:
    """All tokens of a row are drafted or none: leaving some out would bias the text."""
    for likelihood in (0.1, 0.3, 0.5):
        plan = Plan("model", depth=3, min_likelihood=likelihood, min_confidence=0.45)

        def draft(random: EnumeratingSource, plan: Plan = plan) -> tuple[int, ...]:
            session = session_of([START, 0], random=random)
            return tuple(proposed(source_of(ToyCache(LIVELY)), session, plan).tokens)

        drafts = {tokens for tokens, _ in leaves(draft)}
        beginnings = {tokens[:i] for tokens in drafts for i in range(len(tokens))}
        for beginning in beginnings:
            following = {
                tokens[len(beginning)] for tokens in drafts if tokens[: len(beginning)] == beginning
            }
            assert following == {0, 1, 2}


def test_drafts_stop_behind_an_end_token() -> None:
    session = session_of([0, 1], size=3, params=GREEDY)
    session.ends = lambda token: token == 0
    tree = proposed(
        DraftModelSource(DraftModel(ToyCache(CYCLE), 3)), session, Plan("model", depth=5)
    )
    assert tree.tokens == [2, 0]


# What a draft sees.


def test_grammar_holds_along_the_draft() -> None:
    pairs = {(0, 0), (2, 2), (1, 0), (1, 1)}
    constraint = Forbids(pairs, 0)

    def draft(random: EnumeratingSource) -> tuple[int, ...]:
        session = session_of([START, 0], random=random, constraint=constraint)
        return tuple(proposed(source_of(ToyCache(LIVELY)), session, Plan("model", 3)).tokens)

    for tokens in enumerate_outcomes(draft):
        assert all(pair not in pairs for pair in zip((0, *tokens), tokens, strict=False))
    assert constraint.last == 0, "the session's own grammar stays where the text is"


def test_nothing_follows_what_the_grammar_does_not_allow() -> None:
    session = session_of([START, 0], constraint=Forbids({(1, 1)}, 0))
    both = Staged("both", chosen_chain([1, 1]), source_of(ToyCache(LIVELY)))
    assert proposed(both, session, Plan("model", depth=4)).tokens == [1, 1]


@pytest.mark.parametrize("path", [[], [1], [2, 1]])
def test_penalties_see_the_text_and_the_path_once(path: list[int]) -> None:
    params = replace(AS_IS, frequency_penalty=0.7, repeat_penalty=1.2)
    session = session_of([START, 0, 1], params=params, random=EnumeratingSource())
    both = Staged("both", chosen_chain(path), source_of(ToyCache(OTHER)))
    tree = proposed(both, session, Plan("model", depth=4))
    assert len(tree) == max(4, len(path))
    for node in range(len(path), len(tree)):
        before = [*session.context, *tree.tokens[:node]]
        row = OTHER.logits([before])[0]
        wanted = session.sampler.distribution(row, Occurrences.of(before))
        q = tree.proposals[node]
        assert q is not None
        assert q.probs == pytest.approx(wanted.probs)


def test_draft_model_with_more_tokens_proposes_none_that_the_target_lacks() -> None:
    wide = ToyModel(np.broadcast_to([0.1, 0.2, 0.1, 0.3, 0.9], (5, 5, 5)))

    def draft(random: EnumeratingSource) -> tuple[int, ...]:
        session = session_of([0, 1], size=3, random=random)
        source = DraftModelSource(DraftModel(ToyCache(wide), 3))
        return tuple(proposed(source, session, Plan("model", depth=1)).tokens)

    found = enumerate_outcomes(draft)
    assert found == pytest.approx({(0,): 0.25, (1,): 0.5, (2,): 0.25})


@pytest.mark.parametrize(
    "params",
    [AS_IS, replace(AS_IS, logit_bias={4: 1.0, 1: 0.5}), replace(AS_IS, presence_penalty=0.5)],
    ids=["as it is", "bias", "penalties"],
)
@pytest.mark.parametrize("greedy", [False, True])
def test_draft_model_with_fewer_tokens_proposes_those_it_has(
    params: SamplingParams, greedy: bool
) -> None:
    """Bias and penalties may name tokens that only the target has."""
    narrow = ToyModel([[[3, 2, 1]] * 3] * 3)
    session = session_of([0, 1], size=5, params=params)
    session.sampler = Sampler(params, 5)
    source = DraftModelSource(DraftModel(ToyCache(narrow), 5), greedy=greedy)
    tree = proposed(source, session, Plan("model", depth=2))
    assert set(tree.tokens) <= {0, 1, 2}
    assert len(tree) == 2
