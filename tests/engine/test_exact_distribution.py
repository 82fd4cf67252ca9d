"""With real models and caches, two sampled tokens have exactly the target's distribution.

Every outcome of every draw and coin is enumerated, one answer after the other from the same caches,
and weighted with its probability. This detects any bias; a sample of thousands detects one of 1%
most of the time. So models are small, and few tokens may follow. Toy models with other settings are
in tests/decoding. Random numbers of real answers are independent if no position is used twice:
`EnumeratingSource` checks that, and `test_random_source` the rest.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from time import perf_counter

import pytest

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.interfaces import PassRequest
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler
from localspec.decoding.tree import ROOT
from localspec.policy.profile import PairProfile
from tests.decoding.exact import gap
from tests.policy.measuring import Clock
from tests.support import inside
from tests.support.sessions import a_session, make_drafts_cheap, steps
from tests.support.toys import EnumeratingSource, enumerate_outcomes, token_tree

pytestmark = pytest.mark.nightly

EXACT = 1e-6  # probabilities closer than this are equal, where passes round alike

PROMPT = "She went to the"
"""Its next tokens are nearly equally likely."""
SAMPLING = SamplingParams(temperature=0.8, top_k=8, top_p=1.0, min_p=0.0)
Pair = tuple[int, ...]  # two tokens

WAYS = {
    "chain, block verification": Drafting(drafter="model", depth=2, rule="block"),
    "chain, speculative sampling": Drafting(drafter="model", depth=2, rule="token"),
    "tree, speculative sampling": Drafting(drafter="model", depth=2, width=2, rule="token"),
    "cascade": Drafting(drafter="cascade", depth=3, rule="token"),
    "auto": Drafting(),
}
SIZES = {"three tokens, short drafts": (3, 3), "two tokens, longer drafts": (2, 4)}
"""How many tokens may follow each, and for how many there is room: outcomes multiply."""


def target_distribution(engine: Engine, sampling: SamplingParams) -> dict[Pair, float]:
    """Probability of each pair of tokens after the prompt, from single-token passes."""
    sampler, pairs = Sampler(sampling, engine.model.vocabulary.size), dict[Pair, float]()
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    engine.clear()
    first = sampler.distribution(engine.logits(prompt))
    for token, p in zip(first.ids.tolist(), first.probs.tolist(), strict=True):
        second = sampler.distribution(engine.logits([*prompt, token]))
        for follower, q in zip(second.ids.tolist(), second.probs.tolist(), strict=True):
            pairs[token, follower] = p * q
    return pairs


def rounding(engine: Engine, sampling: SamplingParams, expected: Mapping[Pair, float]) -> float:
    """The largest change of a pair's probability by a pass over a tree; 0 in most cases."""
    sampler = Sampler(sampling, engine.model.vocabulary.size)
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    firsts = sorted({first for first, _ in expected})
    tree = token_tree(*((token, ROOT) for token in firsts))
    inside.slot(engine).cache.reuse(prompt)
    rows = inside.slot(engine).cache.forward(PassRequest(prompt, tree)).rows
    p, *follow = [sampler.distribution(row) for row in rows]
    inside.slot(engine).cache.rollback(prompt)
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


@pytest.mark.parametrize("answers", [5, 40, 200])
def test_two_tokens_of_auto_with_a_profile(tiny: Engine, tiny_clock: Clock, answers: int) -> None:
    """The profile is learned from ordinary answers."""
    make_drafts_cheap(tiny)
    sampling = replace(SAMPLING, temperature=2.0)  # random weights: logits are further apart
    prompt = tiny.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    counts: Counter[str] = Counter()
    for seed in range(answers):
        run(tiny, prompt, 4, sampling, SeededRandom(seed), WAYS["auto"], counts, tiny_clock)
    assert 0 < counts["accepted"] < counts["tested"]
    check_every_outcome(tiny, WAYS["auto"], 3, 3, clock=tiny_clock, learned=tiny.profile)


def test_two_tokens_of_the_embedded_pair(engine: Engine) -> None:
    """Quantized weights may round differently in passes over several tokens."""
    check_every_outcome(
        engine, WAYS["chain, block verification"], *SIZES["three tokens, short drafts"]
    )


def run(
    engine: Engine,
    prompt: Sequence[int],
    room: int,
    sampling: SamplingParams,
    random: SeededRandom,
    drafting: Drafting,
    counts: Counter[str],
    clock: Callable[[], float],
    profile: PairProfile | None = None,
) -> Pair:
    """The first two tokens of one answer."""
    session = a_session(engine, prompt, room, sampling, random)
    session.prompt_length = 0  # draft in the first step already
    with closing(steps(engine, session, drafting, clock=clock, profile=profile)) as going:
        while len(session.context) < len(prompt) + 2:
            step = next(going)
            counts.update(tested=len(step.tests), accepted=len(step.path))
    first, second = session.context[len(prompt) : len(prompt) + 2]
    return first, second


def check_every_outcome(
    engine: Engine,
    drafting: Drafting,
    top_k: int,
    room: int,
    clock: Callable[[], float] = perf_counter,
    learned: PairProfile | None = None,
) -> None:
    """Enumerate all outcomes with `top_k` tokens after each, and `room` tokens of an answer, each
    from the same profile, `learned` or empty."""
    sampling = replace(SAMPLING, top_k=top_k)
    expected = target_distribution(engine, sampling)
    limit = EXACT + 2 * rounding(engine, sampling, expected)
    assert limit < 1e-3, "passes round too differently here to detect a bias"
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    counts: Counter[str] = Counter()
    if learned is None:
        make_drafts_cheap(engine)
        learned = engine.profile

    def once(random: EnumeratingSource) -> Pair:
        profile = deepcopy(learned)
        return run(engine, prompt, room, sampling, random, drafting, counts, clock, profile)

    found = enumerate_outcomes(once)
    assert gap(found, expected) < limit
    assert 0 < counts["accepted"] < counts["tested"]
