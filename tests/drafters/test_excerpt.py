"""Excerpts: a draft model reads only the beginning and the end of a long text."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from localspec.decoding.acceptance import AcceptanceRule, GreedyMatch, SpeculativeSampling
from localspec.decoding.interfaces import Plan
from localspec.decoding.random_source import SeededRandom
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.sources import Source
from localspec.drafters.draft_model import SINKS, DraftModel
from localspec.drafters.named import Cascade
from tests.decoding.exact import run
from tests.support.drafting import cascade_of
from tests.support.toys import AS_IS, GREEDY, ToyCache, ToyModel, ToyTarget, session_of

WORDS = 50
WINDOW = 12
NEXT = ToyModel(np.full((WORDS, WORDS), 0.01) + np.roll(np.eye(WORDS), 7, axis=1))
"""Predicts mostly the token seven further."""
OTHER = ToyModel(np.full((WORDS, WORDS), 0.02) + np.roll(np.eye(WORDS), 7, axis=1))


def words(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(WORDS), k=count)


def model_of(cache: ToyCache) -> DraftModel:
    return DraftModel(cache, WORDS, window=WINDOW)


def is_excerpt(held: Sequence[int], text: Sequence[int]) -> bool:
    """Whether tokens are the first ones of a text and a contiguous part of the rest."""
    rest = list(held[SINKS:])
    pieces = (text[i : i + len(rest)] for i in range(SINKS, len(text) - len(rest) + 1))
    return list(held[:SINKS]) == list(text[:SINKS]) and any(rest == list(p) for p in pieces)


@pytest.mark.parametrize("count", [1, SINKS, SINKS + WINDOW - 1, SINKS + WINDOW])
def test_short_prompt_is_read_completely(count: int) -> None:
    cache, text = ToyCache(NEXT), words(count)
    model_of(cache).begin(text)
    assert cache.tokens == text[:-1]


def test_missed_text_is_read_from_its_end() -> None:
    """For example, a copy of hundreds of tokens drafted by the n-gram."""
    cache = ToyCache(NEXT, capacity=300)
    model, text = model_of(cache), words(20)
    model.begin(text)
    text += words(150, 1)
    cache.decoded.clear()
    model.sync(text)
    assert model.unread(text) == WINDOW
    assert model.held(text) == SINKS + WINDOW
    model.extend(model.to_read(text)[len(cache.tokens) :])
    assert cache.tokens == [*text[:SINKS], *text[-WINDOW:]]
    text.append(3)
    model.sync(text)
    assert model.unread(text) == 1, "and continues from there"
    assert model.to_read(text)[len(cache.tokens) :] == [3]


def test_excerpt_is_renewed_when_it_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftModel, "LONGEST", 40)
    cache, text = ToyCache(NEXT, capacity=300), words(20)
    model, most = model_of(cache), 0
    model.begin(text)
    for word in words(200, 1):
        text.append(word)
        model.sync(text)
        unread, length = model.unread(text), model.held(text)
        pending = model.to_read(text)[len(cache.tokens) :]
        assert len(pending) == unread
        model.extend(pending)
        assert len(cache.tokens) == length
        assert is_excerpt(cache.tokens, text)
        assert cache.tokens[-WINDOW:] == text[-WINDOW:]
        most = max(most, len(cache.tokens))
    assert most == 40


def test_next_turn_extends_the_excerpt() -> None:
    cache, text = ToyCache(NEXT, capacity=300), words(100)
    model_of(cache).begin(text)
    cache.decoded.clear()
    text += words(8, 1)
    model_of(cache).begin(text)  # another object, as after a session was read from disk
    assert len(cache.decoded) == 8
    assert is_excerpt(cache.tokens, text)


def cascade(cache: ToyCache) -> Cascade:
    return cascade_of(model_of(cache))


@pytest.mark.parametrize("make", [model_of, cascade])
@pytest.mark.parametrize(
    ("params", "rule"), [(GREEDY, GreedyMatch()), (AS_IS, SpeculativeSampling())]
)
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("drafts", [NEXT, OTHER])
def test_drafts_continue_the_excerpt(
    make: Callable[[ToyCache], Source],
    params: SamplingParams,
    rule: AcceptanceRule,
    drafts: ToyModel,
    recurrent: bool,
) -> None:
    """Every decoded text is an excerpt, or a draft after one."""
    for seed in range(5):
        cache = ToyCache(drafts, capacity=300, recurrent=recurrent)
        session = session_of(
            words(90, seed), params=params, random=SeededRandom(seed), size=WORDS, count=40
        )
        target = ToyTarget(NEXT, capacity=300)
        run(session, target, make(cache), Plan("model", depth=3), rule)
        text = session.context
        assert len(text) == 130
        assert is_excerpt(cache.tokens, text)
        for decoded in cache.decoded:
            if len(decoded) <= SINKS:
                assert list(decoded) == text[: len(decoded)]
                continue
            assert any(is_excerpt(decoded[:n], text) for n in range(len(decoded), SINKS, -1))
        if not recurrent:  # which reads lost tokens again
            assert sum(is_excerpt(one, text) for one in set(cache.decoded)) <= SINKS + WINDOW + 40
