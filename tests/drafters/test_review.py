"""Trying a draft model that is not asked at present: on the latest tokens, leaving no trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from localspec.decoding.sampling import SamplingParams
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.policy.acceptance_estimator import logit
from tests.support.tongues import TONGUES, WAYS, heterogeneous
from tests.support.toys import (
    AS_IS,
    GREEDY,
    SIZE,
    BranchingToyCache,
    ToyCache,
    session_of,
    started,
)

DRAFT = started(
    [[[1, 5, 2], [2, 1, 5], [5, 2, 1]], [[2, 3, 5]] * 3, [[6, 1, 2], [1, 2, 6], [3, 2, 1]]]
)
"""What follows depends on two tokens."""
TEXT = [n * n % SIZE for n in range(30)]
READ = 10
"""Tokens that the draft model had read when it was asked last."""
MOST = 8


def reviewed(
    cache: ToyCache,
    params: SamplingParams = GREEDY,
    *,
    text: list[int] = TEXT,
    read: int = READ,
    most: int = MOST,
    greedy_drafts: bool = False,
) -> list[tuple[tuple[float, ...], bool | None]]:
    """What a review finds of a draft model that has read a part of the text."""
    source = DraftModelSource(DraftModel(cache, DRAFT.size), greedy=greedy_drafts)
    session = session_of(text, params=params)
    if read:
        cache.extend(text[:read])
    found = source.review(session, most)
    assert session.context == text
    return found


def by_hand(
    text: list[int], read: int, most: int
) -> list[tuple[tuple[float, float, float, float], bool]]:
    """Features of the best token behind what it had read and then each of the last tokens."""
    found = []
    for at in range(len(text) - most, len(text)):
        seen = [*text[:read], *text[len(text) - most - 1 : at]]
        probs = DRAFT.probabilities(seen)
        best, some = float(probs.max()), probs[probs > 0.0]
        entropy = -float((some * np.log(some)).sum())
        found.append(((1.0, logit(best), entropy, 0.0), bool(probs.argmax() == text[at])))
    return found


@pytest.mark.parametrize("most", [1, 3, 8])
def test_it_says_how_the_latest_tokens_would_have_been_drafted(most: int) -> None:
    """One pass, right behind what was read when it was asked last."""
    cache = ToyCache(DRAFT)
    found = reviewed(cache, most=most)
    wanted = by_hand(TEXT, READ, most)
    assert [right for _, right in found] == [right for _, right in wanted]
    for (features, _), (expected, _) in zip(found, wanted, strict=True):
        assert features == pytest.approx(expected, abs=1e-5)
    assert cache.native_seconds == 2, "the text before it, and the review"
    assert len(cache.decoded) == READ + most


def test_what_it_finds_was_sometimes_right() -> None:
    rights = [right for _, right in reviewed(ToyCache(DRAFT))]
    assert {True, False} == set(rights)


@pytest.mark.parametrize("greedy_drafts", [False, True], ids=["drawn", "chosen"])
def test_chance_has_a_say_in_sampled_text(greedy_drafts: bool) -> None:
    """Whether a draft would have been accepted is not known; how sure it was is."""
    found = reviewed(ToyCache(DRAFT), AS_IS, greedy_drafts=greedy_drafts)
    assert [right for _, right in found] == [None] * MOST
    assert [features for features, _ in found] == [f for f, _ in reviewed(ToyCache(DRAFT))]


def test_confidence_is_the_models_own_whatever_the_sampling() -> None:
    for params in (replace(AS_IS, temperature=0.2, top_k=2), replace(AS_IS, top_p=0.1)):
        found = reviewed(ToyCache(DRAFT), params)
        assert [f for f, _ in found] == [f for f, _ in reviewed(ToyCache(DRAFT), AS_IS)]


@pytest.mark.parametrize("params", [GREEDY, AS_IS], ids=["greedy", "sampled"])
@pytest.mark.parametrize("read", [0, 1, READ, len(TEXT) - 2])
@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
def test_it_leaves_the_draft_model_where_it_was(
    recurrent: bool, read: int, params: SamplingParams
) -> None:
    cache = ToyCache(DRAFT, recurrent=recurrent)
    assert reviewed(cache, params, read=read)
    assert cache.tokens == TEXT[:read]


def test_it_leaves_a_cache_that_branches_where_it_was() -> None:
    cache = BranchingToyCache(DRAFT)
    assert reviewed(cache)
    assert cache.tokens == TEXT[:READ]
    cache.grow([0, 1], [-1, -1])


@pytest.mark.parametrize("recurrent", [False, True], ids=["attention", "recurrent"])
def test_text_goes_on_as_if_it_had_not_been(recurrent: bool) -> None:
    cache = ToyCache(DRAFT, recurrent=recurrent)
    source = DraftModelSource(DraftModel(cache, DRAFT.size))
    session = session_of(TEXT, params=GREEDY)
    source.begin(TEXT[:READ])
    held = list(cache.tokens)
    source.review(session, MOST)
    cache.decoded.clear()
    source.committed(session.context, {})
    assert cache.tokens == held
    source.begin(TEXT)
    assert cache.tokens == TEXT[:-1]
    assert cache.decoded == [tuple(TEXT[:n]) for n in range(len(held) + 1, len(TEXT))]


@pytest.mark.parametrize(
    ("behind", "found"), [(0, 0), (1, 0), (2, 1), (3, 2), (8, 7), (9, 8), (10, 8), (19, 8)]
)
def test_it_looks_no_further_than_what_is_committed_and_unread(behind: int, found: int) -> None:
    """A token is tried behind the one before it, which the pass reads; the last one is not read."""
    cache = ToyCache(DRAFT)
    read = len(TEXT) - behind
    assert len(reviewed(cache, read=read)) == found
    assert cache.tokens == TEXT[:read]
    tried = cache.decoded[read:]
    assert len(tried) == found
    assert all(
        decoded[read:] == tuple(TEXT[-found - 1 : -1])[: len(decoded) - read] for decoded in tried
    )


@pytest.mark.parametrize(("room", "found"), [(0, 0), (1, 1), (5, 5), (8, 8), (20, 8)])
def test_it_takes_no_more_room_than_there_is(room: int, found: int) -> None:
    """`ToyCache` takes no token beyond its capacity."""
    cache = ToyCache(DRAFT, capacity=READ + room)
    assert len(reviewed(cache)) == found
    assert cache.tokens == TEXT[:READ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tongue", ["other ids", "finer", "coarser"])
def test_nothing_that_it_says_is_compared_with_what_comes(tongue: str, way: str) -> None:
    """A draft model with another vocabulary learns from drafts, not from a text with a gap."""
    model = heterogeneous(ToyCache(DRAFT), TONGUES[tongue], way=way)
    source = DraftModelSource(model)
    session = session_of(TEXT, params=GREEDY)
    source.begin(TEXT[:READ])
    held = list(model.mapped.tokens)
    assert len(source.review(session, MOST)) == MOST
    assert model.mapped.tokens == held
    source.committed(session.context, {})
    assert (model._compared, model._won) == (0, 0)
