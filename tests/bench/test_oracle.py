"""The bound: by hand, against brute force, and its traces against the drafters themselves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pytest

import localspec
from localspec import Drafting, Engine, ModelOptions, SamplingParams
from localspec.bench.bound import Bounds, find_bounds, prompt_tokens
from localspec.bench.oracle import (
    Curve,
    best_time,
    consecutive,
    expected_tokens,
    hardware_bound,
    ngram_reach,
    trace,
)
from localspec.bench.samples import BenchPrompt
from tests.bench.samples import sample


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The embedded pair on one thread: two on a busy machine wait for each other."""
    with localspec.load(options=ModelOptions(context=512, threads=1)) as pair:
        yield pair


TILES = (1.0, 1.5, 2.0, 1.5, 2.1, 2.8, 3.4, 2.9)
"""A curve with the local minima of tiles of four."""


def tiled(n: int) -> float:
    return TILES[n - 1]


def flat(_n: int) -> float:
    return 1.0


def test_without_drafters_every_token_is_a_pass() -> None:
    assert best_time(5, flat, {}, {}) == 5.0
    assert best_time(5, flat, {}, {}, 0.5) == 7.5
    assert best_time(0, flat, {}, {}) == 0.0


def test_free_drafts_on_a_flat_curve_take_one_pass() -> None:
    assert best_time(5, flat, {"n": 0.0}, {"n": [5, 4, 3, 2, 1]}, most_depth=7) == 1.0


def test_a_draft_costs_its_tokens() -> None:
    # Two drafted tokens and their pass, 1 + 2 × 0.3, against three plain passes.
    assert best_time(3, flat, {"m": 0.3}, {"m": [2, 1, 0]}, most_depth=7) == pytest.approx(1.6)
    assert best_time(3, flat, {"m": 1.5}, {"m": [2, 1, 0]}, most_depth=7) == 3.0


def test_a_pass_over_more_tokens_can_be_the_cheaper_one() -> None:
    # Two are accepted, yet three are drafted: a pass over 4 costs less than one over 3.
    reach = {"n": [2, 0, 0]}
    assert best_time(3, tiled, {"n": 0.0}, reach, most_depth=7) == 1.5
    assert best_time(3, tiled, {"n": 0.0}, reach, most_depth=2) == 2.0


def test_the_best_drafter_is_taken_at_each_position() -> None:
    reach = {"a": [1, 0, 0, 0], "b": [0, 0, 1, 0]}
    assert best_time(4, flat, {"a": 0.1, "b": 0.2}, reach, most_depth=3) == pytest.approx(2.3)


def test_a_pass_may_reach_beyond_the_end() -> None:
    assert best_time(2, flat, {"n": 0.0}, {"n": [9, 9]}, most_depth=7) == 1.0


def brute_force(
    length: int,
    curve: Curve,
    draft_seconds: Mapping[str, float],
    reach: Mapping[str, Sequence[int]],
    overhead: float,
    most_depth: int,
) -> float:
    """The definition, by recursion."""

    @cache
    def rest(position: int) -> float:
        if position >= length:
            return 0.0
        options = [curve(1) + overhead + rest(position + 1)]
        for name, seconds in draft_seconds.items():
            for depth in range(1, most_depth + 1):
                cost = depth * seconds + curve(depth + 1) + overhead
                options.append(cost + rest(position + min(depth, reach[name][position]) + 1))
        return min(options)

    return rest(0)


@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force(seed: int) -> None:
    dice = random.Random(seed)
    length, most = dice.randint(0, 12), dice.randint(1, 7)
    costs = [dice.uniform(0.5, 3.0) for _ in range(most + 1)]
    draft = {"n": 0.0, "m": dice.uniform(0.0, 0.5)}
    reach = {name: [dice.randint(0, 9) for _ in range(length)] for name in draft}

    def curve(n: int) -> float:
        return costs[n - 1]

    found = best_time(length, curve, draft, reach, 0.1, most_depth=most)
    assert found == pytest.approx(brute_force(length, curve, draft, reach, 0.1, most))


def test_the_hardware_bound_is_the_best_ratio() -> None:
    assert hardware_bound(tiled, 8) == pytest.approx(8 / 2.9)
    assert hardware_bound(tiled, 4) == pytest.approx(4 / 1.5)
    assert hardware_bound(lambda n: float(n), 8) == 1.0


@pytest.mark.parametrize(
    ("acceptance", "depth", "expected"),
    [(0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 2, 2.44)],
)
def test_theory(acceptance: float, depth: int, expected: float) -> None:
    assert expected_tokens(acceptance, depth) == pytest.approx(expected)


def test_consecutive_agreements() -> None:
    assert consecutive([True, True, False, True]) == [2, 1, 0, 1]
    assert consecutive([]) == []


def test_the_n_gram_reaches_as_far_as_the_text_repeats() -> None:
    # After 1 2 3 4 9 1 2 comes 3 4 9 1, copied from the beginning, and then something new.
    assert ngram_reach([1, 2, 3, 4, 9, 1], [2, 3, 4, 9, 1, 7]) == [4, 3, 2, 1, 0]
    assert ngram_reach([1, 2, 3], [4]) == []


def test_the_draft_models_trace_is_what_it_drafts(engine: Engine) -> None:
    """One token accepted at a time shows, position by position, what the drafter got right."""
    text = "<|user|>Tell me a story about a fox.<|end|><|assistant|>"
    prompt = prompt_tokens(engine, text)
    greedy, drafting = SamplingParams(temperature=0), Drafting(drafter="model", depth=4)
    stream = engine.stream(
        text,
        max_tokens=40,
        sampling=greedy,
        drafting=drafting,
    )
    chunks = [chunk for chunk in stream if chunk.step is not None]
    answer = [token for chunk in chunks for token in chunk.token_ids]
    reach = trace(engine, prompt, answer)["model"]
    assert len(reach) == len(answer) - 1
    position = 0
    for chunk in chunks[1:]:
        step = chunk.step
        assert step is not None
        if step.tree.tokens:
            assert min(reach[position], len(step.tree)) == step.accepted
        position += len(chunk.token_ids)
    # The engine goes on as if nothing had happened.
    again = engine.generate(text, max_tokens=40, sampling=greedy, drafting=drafting)
    assert again.text == stream.text


class Curves:
    """A cost curve that knows its figures."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def seconds(self, tokens: int, _context_length: int) -> float:
        return self._scale * (1.0 + 0.1 * (tokens - 1))


def test_bounds_of_a_measured_pair(engine: Engine) -> None:
    text = "Once upon a time, there was a little fox"
    plain = engine.stream(
        text,
        max_tokens=24,
        sampling=SamplingParams(temperature=0),
        drafting=Drafting(drafter="none"),
    )
    tokens = tuple(token for chunk in plain for token in chunk.token_ids)
    answered = sample(
        prompt="p", tokens=len(tokens) - 1, token_ids=tokens, passes=23, overhead_seconds=0.0
    )
    prompts = [BenchPrompt("p", "story", text)]
    found = find_bounds(engine, Curves(1.0), Curves(0.01), [answered], prompts)
    assert isinstance(found, Bounds)
    (bound,) = found.suites
    assert (bound.suite, bound.tokens) == ("story", len(tokens) - 1)
    assert 1.0 <= bound.speed_up <= found.hardware
    assert found.hardware == pytest.approx(64 / 7.3)
    assert find_bounds(engine, Curves(1.0), None, [], prompts) is None
