"""With four answers in flight, two tokens of each have the target's distribution.

Every outcome of every draw and coin is walked through, as in `test_exact_distribution`, by four
answers at once, each drafted in its own way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import localspec
from localspec import Drafting, ModelOptions
from localspec.decoding.random_source import RandomSource
from localspec.llama import library
from localspec.llama.quantize import quantize
from localspec.parallel_engine import ParallelEngine
from tests.decoding.exact import gap
from tests.engine.test_exact_distribution import WAYS
from tests.engine.test_sampled_distribution import (
    PROMPT,
    SAMPLING,
    Pair,
    of_the_target,
)
from tests.support import ggufs
from tests.support.sessions import a_session
from tests.support.together import seated, together
from tests.support.toys import leaves

AT_ONCE = 4
OPTIONS = ModelOptions(context=1024, threads=library.default_threads())
WIDE = replace(OPTIONS, kv_type_k="f32", kv_type_v="f32")
EXACT = 1e-3
"""Probabilities closer than this are equal. Passes of other sizes round differently, and what the
others ask for is never twice the same: with 16 bits by half of this, at most seen."""


def two_tokens(
    parallel: ParallelEngine,
    prompt: list[int],
    room: int,
    sampling: localspec.SamplingParams,
    drafting: Drafting,
    seen: Counter[str],
    random: RandomSource,
) -> Pair:
    session = a_session(parallel, prompt, room, sampling, random)
    session.prompt_length = 0  # draft in the first step already
    with seated(parallel, session, sampling, drafting) as steps:
        while len(session.context) < len(prompt) + 2:
            step = next(steps)
            seen.update(tested=len(step.tests), accepted=len(step.path))
    first, second = session.context[len(prompt) : len(prompt) + 2]
    return first, second


def test_every_outcome_of_four_ways_at_once(tmp_path: Path) -> None:
    sampling = replace(SAMPLING, top_k=3)
    target, rough = ggufs.tiny_llama(tmp_path / "target.gguf"), tmp_path / "rough.gguf"
    draft = tmp_path / "draft.gguf"
    # Often right, and not always, yet of 16 bits as well: its rows have to be the same each time.
    quantize(target, rough, "Q4_0")
    quantize(rough, draft, "F16", again=True)
    ways = [way for way in sorted(WAYS) if way != "auto"]  # what that has learned would vary
    assert len(ways) == AT_ONCE
    tallies = [Counter[str]() for _ in ways]
    with localspec.load(target, draft=None, options=WIDE) as engine:
        expected = of_the_target(engine, sampling)
        prompt = engine.model.vocabulary.tokenize(PROMPT, special=True, add_bos=True)

    with localspec.load(target, draft=draft, options=WIDE, parallel=AT_ONCE) as pair:
        assert isinstance(pair, ParallelEngine)
        parallel = pair

        def walk(number: int) -> dict[Pair, float]:
            found: dict[Pair, float] = {}
            run = partial(
                two_tokens, parallel, prompt, 3, sampling, WAYS[ways[number]], tallies[number]
            )
            for outcome, weight in leaves(run):
                found[outcome] = found.get(outcome, 0.0) + weight
            return found

        results = together([partial(walk, number) for number in range(AT_ONCE)])
    for way, found, seen in zip(ways, results, tallies, strict=True):
        assert isinstance(found, dict), found
        assert abs(sum(found.values()) - 1.0) < EXACT, way
        assert gap(found, expected) < EXACT, way
        assert 0 < seen["accepted"] < seen["tested"], way
