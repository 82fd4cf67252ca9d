"""Answers that go on when the context is full, without the oldest of the text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import localspec
from localspec import ContextShift, Drafting, Engine, SamplingParams
from localspec.prompting.prompt import Tokens
from tests.engine.conftest import TINY_OPTIONS, ModelFiles
from tests.support.asking import PLAIN, WAYS, asked, said, tokens_of
from tests.support.together import together

ROOM = 256  # tokens of the context
LENGTH = 360  # tokens of answers: the context is full twice, or more often
KEPT = [ContextShift(), ContextShift(keep=20, discard=60), ContextShift(keep=-1)]


@pytest.fixture(scope="module")
def small(exact_pair: ModelFiles) -> Iterator[Engine]:
    target, draft = exact_pair
    with localspec.load(target, draft=draft, options=TINY_OPTIONS, context=ROOM) as pair:
        yield pair


def endless(engine: Engine, **more: Any) -> SamplingParams:
    """Greedy, and no token that would end the answer."""
    vocabulary = engine.model.vocabulary
    ends = {t: -math.inf for t in range(vocabulary.size) if vocabulary.ends(t)}
    return SamplingParams(**{"temperature": 0.0, "logit_bias": ends, **more})


def shifted(engine: Engine, prompt: list[int], shift: ContextShift, way: Drafting) -> list[int]:
    """A greedy answer."""
    stream = asked(engine, Tokens(prompt), way, LENGTH, sampling=endless(engine), shift=shift)
    tokens = tokens_of(stream)
    assert stream.finish_reason == "length"
    assert stream.truncated
    return tokens


def by_hand(engine: Engine, prompt: list[int], shift: ContextShift) -> list[int]:
    """The same, each time with what is left as a prompt of its own."""
    text, tokens = prompt, list[int]()
    while len(tokens) < LENGTH:
        left = min(LENGTH - len(tokens), ROOM - len(text))
        new = said(engine, Tokens(text), PLAIN, count=left, sampling=endless(engine))
        tokens, text = tokens + new, text + new
        keep = min(len(prompt) if shift.keep < 0 else shift.keep, ROOM - 4)
        gone = shift.discard or (len(text) - keep) // 2
        text = text[:keep] + text[keep + gone :]
    return tokens


PROMPT = [5 + n % 40 for n in range(60)]


@pytest.fixture(scope="module", params=KEPT, ids=str)
def shift(request: pytest.FixtureRequest) -> ContextShift:
    assert isinstance(request.param, ContextShift)
    return request.param


@pytest.fixture(scope="module")
def shortened(small: Engine, shift: ContextShift) -> list[int]:
    return by_hand(small, PROMPT, shift)


@pytest.mark.parametrize("way", ["none", "ngram", "model", "auto"])
def test_what_is_said_is_what_the_shortened_text_leads_to(
    small: Engine, shift: ContextShift, shortened: list[int], way: str
) -> None:
    """With and without drafts, which are right now and then only."""
    assert shifted(small, PROMPT, shift, WAYS[way]) == shortened


@pytest.mark.nightly
def test_several_at_once(kernels: None, exact_pair: ModelFiles, small: Engine) -> None:
    """Answers that share passes, and cells with others that begin alike."""
    target, draft = exact_pair
    options = replace(TINY_OPTIONS, context=ROOM, parallel=3, parallel_chunk=64)
    with localspec.load(target, draft=draft, options=options) as pair:
        assert pair.parallel > 1
        for shift in KEPT:
            prompts = [PROMPT, [*PROMPT, 7], PROMPT[:40], PROMPT]
            ask = partial(shifted, pair, shift=shift, way=WAYS["model"])
            found = together([partial(ask, prompt) for prompt in prompts])
            assert found == [by_hand(small, prompt, shift) for prompt in prompts]


def test_an_answer_without_a_limit_comes_to_an_end(small: Engine) -> None:
    stream = small.stream(Tokens(PROMPT), sampling=endless(small), shift=ContextShift())
    assert stream.completion().stats.generated_tokens == ROOM
    assert list(stream.prompt) == PROMPT
    assert sum("context was full" in notice for notice in stream.stats.notices) == 1


def test_penalties_and_sampling_go_on(small: Engine) -> None:
    """A seed repeats such an answer."""
    sampling = endless(small, temperature=1.0, seed=3, repeat_penalty=1.5, penalty_last_n=64)
    ask = partial(said, small, Tokens(PROMPT[:2]), PLAIN, count=400, sampling=sampling)
    one, other = (ask(shift=ContextShift(), reuse=False) for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("shift", "tokens", "prompt", "gone"),
    [
        (ContextShift(), 100, 30, slice(0, 50)),
        (ContextShift(keep=10), 100, 30, slice(10, 55)),
        (ContextShift(keep=10, discard=20), 100, 30, slice(10, 30)),
        (ContextShift(keep=-1), 100, 30, slice(30, 65)),
        (ContextShift(keep=99), 100, 30, slice(96, 98)),
        (ContextShift(keep=-1), 100, 99, slice(96, 98)),
        (ContextShift(discard=1000), 100, 30, slice(0, 99)),
        (ContextShift(keep=1000, discard=1000), 100, 30, slice(96, 99)),
    ],
    ids=str,
)
def test_what_leaves(shift: ContextShift, tokens: int, prompt: int, gone: slice) -> None:
    assert shift.removed_slice(tokens, prompt) == gone
