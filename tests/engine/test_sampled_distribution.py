"""The two tokens after a prompt are distributed as the target alone has them.

A chi-square test of what users run: `auto`, with real random numbers and a planner that learns from
every answer. Each way of drafting is tested exactly in `test_exact_distribution`. The sample is as
large as it takes to catch a bias of 1 % (that much probability moved from the likeliest outcome to
the next) with a probability of at least 90 %, so the models are as small as can be; what passes
take is agreed on, or drafts of such models would not pay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pytest
from scipy import stats

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler
from tests.policy.timed import Clock
from tests.support.sessions import a_session, make_drafts_cheap, steps

pytestmark = pytest.mark.nightly

PROMPT = "She went to the"
"""Its next tokens are nearly equally likely, so that a small sample shows a small bias."""
SAMPLING = SamplingParams(temperature=0.8, top_k=8, top_p=1.0, min_p=0.0)
TINY = replace(SAMPLING, temperature=2.0)
"""The same for random weights, whose logits are further apart."""
SAMPLES = 25_000
REJECT = 1e-3
"""Probability of failing although all is well; the seed is fixed, so it fails always or never."""

Pair = tuple[int, ...]  # two tokens


def of_the_target(engine: Engine, sampling: SamplingParams) -> dict[Pair, float]:
    """Probability of each pair of tokens after the prompt, from single-token passes."""
    sampler = Sampler(sampling, engine.model.vocabulary.size)
    context, pairs = engine._target._context, dict[Pair, float]()
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    context.clear()
    first = sampler.distribution(context.extend(prompt)[-1])
    for token, p in zip(first.ids.tolist(), first.probs.tolist(), strict=True):
        second = sampler.distribution(context.extend([token])[-1])
        context.truncate(len(prompt))
        for follower, q in zip(second.ids.tolist(), second.probs.tolist(), strict=True):
            pairs[token, follower] = p * q
    return pairs


def test_two_tokens_of_auto_are_distributed_as_the_targets(tiny: Engine, tiny_clock: Clock) -> None:
    make_drafts_cheap(tiny)
    expected = of_the_target(tiny, TINY)
    assert power_against_one_percent(expected) > 0.9
    prompt = tiny.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    seen, tally = Counter[Pair](), Counter[str]()
    for seed in range(SAMPLES):
        session = a_session(tiny, prompt, 4, TINY, SeededRandom((20_26 << 32) + seed))
        session.prompt_length = 0  # draft in the first step already
        run = steps(tiny, session, Drafting(), clock=tiny_clock)
        while len(session.context) < len(prompt) + 2:
            step = next(run)
            tally.update(tested=len(step.tests), accepted=len(step.path))
        run.close()
        first, second = session.context[len(prompt) : len(prompt) + 2]
        seen[first, second] += 1
    assert chance_of(seen, expected) > REJECT
    # Of answers that are hardly drafted, or whose drafts are always right, no bias would be seen.
    assert tally["tested"] > SAMPLES
    assert 0.3 * tally["tested"] < tally["accepted"] < 0.9 * tally["tested"]


def chance_of(seen: Mapping[Pair, int], expected: Mapping[Pair, float]) -> float:
    """How likely counts at least as odd are, of first tokens or of pairs, if nothing is wrong."""
    assert set(seen) <= set(expected)
    firsts: Counter[int] = Counter()
    for (first, _), count in seen.items():
        firsts[first] += count
    of_firsts = [(firsts[token], p) for token, p in first_tokens(expected).items()]
    return min(chi_square(of_firsts), chi_square([(seen[pair], p) for pair, p in expected.items()]))


def first_tokens(pairs: Mapping[Pair, float]) -> dict[int, float]:
    """Their probabilities."""
    found: dict[int, float] = {}
    for (first, _), p in pairs.items():
        found[first] = found.get(first, 0.0) + p
    return found


def chi_square(outcomes: Sequence[tuple[int, float]]) -> float:
    """p-value of counts against probabilities; outcomes too rare for it are taken together."""
    samples = sum(count for count, _ in outcomes)
    often = [(count, p) for count, p in outcomes if p * samples >= 5]
    rare = [(count, p) for count, p in outcomes if p * samples < 5]
    if rare:
        often.append((sum(count for count, _ in rare), sum(p for _, p in rare)))
    counts, probabilities = zip(*often, strict=True)
    wanted = [p * samples for p in probabilities]
    return float(stats.chisquare(counts, wanted, sum_check=False).pvalue)


def power_against_one_percent(pairs: Mapping[Pair, float], reject: float = REJECT) -> float:
    """Chance that the test sees 1 % moved from the likeliest outcome to the next likeliest: of the
    first tokens or of the pairs, whichever is harder to see."""

    def power(probabilities: Collection[float]) -> float:
        most, next_most = sorted(probabilities)[-1:-3:-1]
        noncentrality = SAMPLES * (0.01**2 / most + 0.01**2 / next_most)
        freedom = len(probabilities) - 1
        bound = stats.chi2.ppf(1 - reject, freedom)
        return float(stats.ncx2.sf(bound, freedom, noncentrality))

    return min(power(first_tokens(pairs).values()), power(pairs.values()))
