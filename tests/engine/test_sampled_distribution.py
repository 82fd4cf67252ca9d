"""At temperature 0.8 the two tokens after a prompt are distributed as the target alone has them.

A chi-square test of what users run: `auto`, with real random numbers and a planner that learns from
every answer. Each way of drafting is tested exactly in `test_exact_distribution`. The sample is as
large as it takes to catch a bias of 1 % (that much probability moved from the likeliest outcome to
the next) with a probability of at least 90 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scipy import stats

from localspec import Drafting, Engine, SamplingParams
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import Sampler
from tests.support.sessions import a_session, steps

PROMPT = "She went to the"
"""Its next tokens are nearly equally likely, so that a small sample shows a small bias."""
SAMPLING = SamplingParams(temperature=0.8, top_k=8, top_p=1.0, min_p=0.0)
SAMPLES = 25_000
REJECT = 1e-3
"""Probability of failing although all is well; the seed is fixed, so it fails always or never."""

Pair = tuple[int, ...]
"""Two tokens."""


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


def test_two_tokens_of_auto_are_distributed_as_the_targets(engine: Engine) -> None:
    expected = of_the_target(engine, SAMPLING)
    prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)
    random, seen = SeededRandom(20_26), Counter[Pair]()
    for _ in range(SAMPLES):
        session = a_session(engine, prompt, 4, SAMPLING, random)
        session.prompt_length = 0  # draft in the first step already
        run = steps(engine, session, Drafting())
        while len(session.context) < len(prompt) + 2:
            next(run)
        run.close()
        first, second = session.context[len(prompt) : len(prompt) + 2]
        seen[first, second] += 1

    assert set(seen) <= set(expected)
    firsts: Counter[int] = Counter()
    for (first, _), count in seen.items():
        firsts[first] += count
    p_first: dict[int, float] = {}
    for (first, _), p in expected.items():
        p_first[first] = p_first.get(first, 0.0) + p
    check("auto", [(firsts[token], p) for token, p in p_first.items()])
    check("auto", [(seen[pair], p) for pair, p in expected.items()])


def check(way: str, outcomes: list[tuple[int, float]], samples: int = SAMPLES) -> None:
    """Chi-square of counts against probabilities; outcomes too rare for it are taken together."""
    often = [(count, p) for count, p in outcomes if p * samples >= 5]
    rare = [(count, p) for count, p in outcomes if p * samples < 5]
    if rare:
        often.append((sum(count for count, _ in rare), sum(p for _, p in rare)))
    counts, probabilities = zip(*often, strict=True)
    if samples == SAMPLES:
        assert power_against_one_percent(probabilities) > 0.9
    wanted = [p * samples for p in probabilities]
    statistic, p_value = stats.chisquare(counts, wanted, sum_check=False)
    assert p_value > REJECT, f"{way}: chi-square {statistic:.1f} over {len(wanted)} outcomes"


def power_against_one_percent(probabilities: Sequence[float]) -> float:
    """Chance that the test sees 1 % moved from the likeliest outcome to the next likeliest."""
    most, next_most = sorted(probabilities)[-1:-3:-1]
    noncentrality = SAMPLES * (0.01**2 / most + 0.01**2 / next_most)
    freedom = len(probabilities) - 1
    bound = stats.chi2.ppf(1 - REJECT, freedom)
    return float(stats.ncx2.sf(bound, freedom, noncentrality))
