"""Over the models and caches themselves, two tokens have exactly the target's distribution.

Every outcome of every draw and coin is walked through, one answer after the other from the same
caches, and weighed with its probability. That sees any bias, where a sample of thousands sees one
of 1 % most of the time; so tokens that may follow are few, and models small. Toy models with other
settings stand in tests/decoding, a sample with the random numbers of real answers in
`test_sampled_distribution`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from time import perf_counter

import pytest

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.sampling import Sampler
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.lookahead import LookaheadSource
from tests.decoding.exact import gap
from tests.engine.test_sampled_distribution import PROMPT, SAMPLING, Pair, of_the_target
from tests.policy.timed import Clock
from tests.support.sessions import a_session, make_drafts_cheap, steps
from tests.support.toys import EnumeratingSource, enumerate_outcomes

pytestmark = pytest.mark.nightly

EXACT = 1e-6  # probabilities closer than this are equal, where passes round alike

WAYS = {
    "chain, block verification": Drafting(drafter="model", depth=2, rule="block"),
    "chain, speculative sampling": Drafting(drafter="model", depth=2, rule="token"),
    "tree, speculative sampling": Drafting(drafter="model", depth=2, width=2, rule="token"),
    "cascade": Drafting(drafter="cascade", depth=3, rule="token"),
    "auto": Drafting(),
}
SIZES = {"three tokens, short drafts": (3, 3), "two tokens, longer drafts": (2, 4)}
"""How many tokens may follow each, and for how many there is room: outcomes multiply."""


def rounding(engine: Engine, sampling: SamplingParams, expected: Mapping[Pair, float]) -> float:
    """How far a pass over a tree moves the probability of a pair, at most; mostly not at all."""
    sampler = Sampler(sampling, engine.model.vocabulary.size)
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    firsts, tree = sorted({first for first, _ in expected}), TokenTree()
    for token in firsts:
        tree.add(token, ROOT, "test")
    engine._target.reuse(prompt)
    rows = engine._target.forward(PassRequest(prompt, tree)).rows
    p, *follow = [sampler.distribution(row) for row in rows]
    engine._target.rollback(prompt)
    found: dict[Pair, float] = {
        (first, second): p.prob(first) * q.prob(second)
        for first, q in zip(firsts, follow, strict=True)
        for second in q.ids.tolist()
    }
    return gap(found, expected)


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("way", sorted(WAYS))
def test_two_tokens_have_the_targets_probabilities(
    tiny: Engine, tiny_clock: Clock, way: str, size: tuple[int, int]
) -> None:
    check_every_outcome(tiny, WAYS[way], *size, clock=tiny_clock)


def test_two_tokens_of_the_embedded_pair(engine: Engine) -> None:
    """Quantized weights round differently in passes over several tokens; or not, as here."""
    check_every_outcome(
        engine, WAYS["chain, block verification"], *SIZES["three tokens, short drafts"]
    )


@pytest.mark.parametrize("width", [1, 2])
def test_two_tokens_beside_a_window(
    tiny: Engine, tiny_clock: Clock, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Lookahead's n-grams take longer to make than two tokens: some are there from the start."""
    begin = LookaheadSource.begin
    pairs = of_the_target(tiny, replace(SAMPLING, top_k=3))

    def begun(source: LookaheadSource, prompt: Sequence[int]) -> None:
        begin(source, prompt)
        for first, second in list(pairs)[::2]:
            source._learn((prompt[-1], first, second))

    monkeypatch.setattr(LookaheadSource, "begin", begun)
    drafting = Drafting(drafter="lookahead", depth=2, width=width, rule="token")
    check_every_outcome(tiny, drafting, *SIZES["three tokens, short drafts"], clock=tiny_clock)


def check_every_outcome(
    engine: Engine,
    drafting: Drafting,
    top_k: int,
    room: int,
    clock: Callable[[], float] = perf_counter,
) -> None:
    """Walk through all of a way's outcomes with so many tokens to follow each, and such room."""
    sampling = replace(SAMPLING, top_k=top_k)
    expected = of_the_target(engine, sampling)
    limit = EXACT + 2 * rounding(engine, sampling, expected)
    assert limit < 1e-3, "passes round so differently here that a bias would not show"
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    seen: Counter[str] = Counter()

    def once(random: EnumeratingSource) -> Pair:
        if not drafting.forced:
            make_drafts_cheap(engine)  # what the planner has learned may not tell the runs apart
        session = a_session(engine, prompt, room, sampling, random)
        session.prompt_length = 0  # draft in the first step already
        with closing(steps(engine, session, drafting, clock=clock)) as run:
            while len(session.context) < len(prompt) + 2:
                step = next(run)
                seen.update(tested=len(step.tests), accepted=len(step.path))
        first, second = session.context[len(prompt) : len(prompt) + 2]
        return first, second

    found = enumerate_outcomes(once)
    assert gap(found, expected) < limit
    assert 0 < seen["accepted"] < seen["tested"]
