"""With four answers in flight, two tokens of each have the target's distribution.

Every outcome of every draw and coin is walked through, as in `test_exact_distribution`, by four
answers at once, each drafted in its own way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

import localspec
from localspec import Drafting, Engine
from localspec.decoding.interfaces import Step
from localspec.decoding.random_source import RandomSource
from tests.decoding.exact import gap
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.engine.test_exact_distribution import PROMPT, SAMPLING, WAYS, Pair, of_the_target
from tests.support.agreed_time import agree_on_time
from tests.support.sessions import a_session
from tests.support.together import seated, together
from tests.support.toys import leaves

pytestmark = pytest.mark.nightly

AT_ONCE = 4
EXACT = 1e-3
"""Probabilities closer than this are equal. Passes of other sizes round differently, and what the
others ask for is never twice the same: with 16 bits by half of this, at most seen."""


@pytest.fixture(scope="module")
def parallel(tiny_pair: ModelFiles) -> Iterator[Engine]:
    """The tiny pair for four answers at once; what passes take is agreed on."""
    target, draft = tiny_pair
    options = replace(TINY_OPTIONS, parallel=AT_ONCE)
    with localspec.load(target, draft=draft, options=options) as pair:
        assert pair.parallel > 1
        agree_on_time(pair)
        yield pair


def two_tokens(
    parallel: Engine,
    prompt: list[int],
    room: int,
    sampling: localspec.SamplingParams,
    drafting: Drafting,
    seen: Counter[str],
    random: RandomSource,
) -> Pair:
    session = a_session(parallel, prompt, room, sampling, random)
    session.prompt_length = 0  # draft in the first step already

    def read(steps: Iterator[Step]) -> None:
        while len(session.context) < len(prompt) + 2:
            step = next(steps)
            seen.update(tested=len(step.tests), accepted=len(step.path))

    seated(parallel, session, sampling, drafting, read)
    first, second = session.context[len(prompt) : len(prompt) + 2]
    return first, second


def test_every_outcome_of_four_ways_at_once(tiny: Engine, parallel: Engine) -> None:
    sampling = replace(SAMPLING, top_k=3)
    ways = [way for way in sorted(WAYS) if way != "auto"]  # what that has learned would vary
    assert len(ways) == AT_ONCE
    tallies = [Counter[str]() for _ in ways]
    expected = of_the_target(tiny, sampling)
    prompt = parallel.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)

    def walk(number: int) -> dict[Pair, float]:
        found: dict[Pair, float] = {}
        drafting, tally = WAYS[ways[number]], tallies[number]
        run = partial(two_tokens, parallel, prompt, 3, sampling, drafting, tally)
        for outcome, weight in leaves(run):
            found[outcome] = found.get(outcome, 0.0) + weight
        return found

    results = together([partial(walk, number) for number in range(AT_ONCE)])
    for way, found, seen in zip(ways, results, tallies, strict=True):
        assert isinstance(found, dict), found
        assert abs(sum(found.values()) - 1.0) < EXACT, way
        assert gap(found, expected) < EXACT, way
        assert 0 < seen["accepted"] < seen["tested"], way
