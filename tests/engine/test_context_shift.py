"""Context shift: answers continue without the oldest text when the context is full."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import localspec
from localspec import ContextShift, Drafting, Engine, SamplingParams
from localspec.prompting.prompt import Tokens
from tests.engine.conftest import TINY_OPTIONS, ModelFiles, module_tiny
from tests.support.asking import PLAIN, WAYS, ask, generate, tokens_of
from tests.support.together import together

ROOM = 256  # tokens of the context
LENGTH = 360  # tokens of answers: the context is full twice, or more often
SHIFTS = [ContextShift(), ContextShift(keep=20, discard=60), ContextShift(keep=-1)]
EDGES = [ContextShift(keep=999), ContextShift(discard=999), ContextShift(keep=999, discard=999)]


small = module_tiny("exact_pair", context=ROOM)


def endless(engine: Engine, **more: Any) -> SamplingParams:
    """Greedy, and no token that would end the answer."""
    vocabulary = engine.model.vocabulary
    ends = {t: -math.inf for t in range(vocabulary.size) if vocabulary.ends(t)}
    return SamplingParams(**{"temperature": 0.0, "logit_bias": ends, **more})


def shifted(engine: Engine, prompt: list[int], shift: ContextShift, way: Drafting) -> list[int]:
    stream = ask(engine, Tokens(prompt), way, LENGTH, sampling=endless(engine), shift=shift)
    tokens = tokens_of(stream)
    assert stream.finish_reason == "length"
    assert stream.truncated
    return tokens


def shift_by_prompts(engine: Engine, prompt: list[int], shift: ContextShift) -> list[int]:
    """The same with separate prompts: each is the text that remains after a shift."""
    text, tokens = prompt, list[int]()
    while len(tokens) < LENGTH:
        left = min(LENGTH - len(tokens), ROOM - len(text))
        new = generate(engine, Tokens(text), PLAIN, count=left, sampling=endless(engine))
        tokens, text = tokens + new, text + new
        keep = min(len(prompt) if shift.keep < 0 else shift.keep, ROOM - 4)
        gone = min(shift.discard or (len(text) - keep) // 2, len(text) - keep - 1)
        text = text[:keep] + text[keep + gone :]
    return tokens


PROMPT = [5 + n % 40 for n in range(60)]


@pytest.fixture(scope="module", params=[*SHIFTS, *EDGES], ids=str)
def shift(request: pytest.FixtureRequest) -> ContextShift:
    assert isinstance(request.param, ContextShift)
    return request.param


@pytest.fixture(scope="module")
def shortened(small: Engine, shift: ContextShift) -> list[int]:
    return shift_by_prompts(small, PROMPT, shift)


@pytest.mark.parametrize("way", ["none", "ngram", "model", "auto"])
def test_answer_equals_that_to_the_shortened_text(
    small: Engine, shift: ContextShift, shortened: list[int], way: str
) -> None:
    assert shifted(small, PROMPT, shift, WAYS[way]) == shortened


@pytest.mark.nightly
def test_parallel_answers_shift(kernels: None, exact_pair: ModelFiles, small: Engine) -> None:
    """Answers share passes, and cells of common prefixes."""
    target, draft = exact_pair
    options = replace(TINY_OPTIONS, context=ROOM, parallel=3, parallel_chunk=64)
    with localspec.load(target, draft=draft, options=options) as pair:
        assert pair.parallel > 1
        for shift in SHIFTS:
            prompts = [PROMPT, [*PROMPT, 7], PROMPT[:40], PROMPT]
            run = partial(shifted, pair, shift=shift, way=WAYS["model"])
            found = together([partial(run, prompt) for prompt in prompts])
            assert found == [shift_by_prompts(small, prompt, shift) for prompt in prompts]


def test_answer_without_a_limit_ends(small: Engine) -> None:
    stream = small.stream(Tokens(PROMPT), sampling=endless(small), shift=ContextShift())
    assert stream.completion().stats.generated_tokens == ROOM
    assert list(stream.prompt) == PROMPT
    assert sum("context was full" in notice for notice in stream.stats.notices) == 1


def test_seed_repeats_a_shifted_answer_with_penalties(small: Engine) -> None:
    sampling = endless(small, temperature=1.0, seed=3, repeat_penalty=1.5, penalty_last_n=64)
    run = partial(generate, small, Tokens(PROMPT[:2]), PLAIN, count=400, sampling=sampling)
    one, other = (run(shift=ContextShift(), reuse=False) for _ in range(2))
    assert one == other
