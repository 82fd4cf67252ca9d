"""Rows of a draft model in the target's tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.vocabulary_map import VocabularyMap
from tests.support.toys import examples

TARGET = [b"un", b"believ", b"able", b" the", b"", control(b"bos"), control(b"eot")]
DRAFT = [b" the", b"unbeliev", b"unable", b"un", b"zz", control(b"eot"), control(b"own")]


def between(target: list[bytes], draft: list[bytes]) -> VocabularyMap:
    return VocabularyMap(
        ByteVocabulary(target), ByteVocabulary(draft), dropped=5, sample=b"unable the"
    )


def logits(*probs: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        found: np.ndarray = np.log(np.array(probs, np.float32))
    return found


def probs(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row - row.max())
    found: np.ndarray = weights / weights.sum()
    return found


def test_shared_tokens_keep_their_proportions() -> None:
    found = probs(between(TARGET, DRAFT).on_shared(logits(0.3, 0, 0, 0.1, 0.5, 0.1, 0)))
    assert found == pytest.approx([0.2, 0, 0, 0.6, 0, 0, 0.2], abs=1e-6)


def test_token_that_only_the_draft_model_has_counts_for_the_first_it_is_written_with() -> None:
    found = probs(between(TARGET, DRAFT).on_shared(logits(0.3, 0.4, 0.2, 0.1, 0, 0, 0)))
    assert found == pytest.approx([0.7, 0, 0, 0.3, 0, 0, 0], abs=1e-6)


def test_rows_are_finite_so_that_a_grammar_finds_something() -> None:
    assert np.isfinite(between(TARGET, DRAFT).on_shared(logits(0, 0, 0, 0, 1, 0, 0))).all()
    assert np.isfinite(between(TARGET, DRAFT).on_shared(logits(1, 0, 0, 0, 0, 0, 0))).all()


def test_within_a_token_its_rest_follows() -> None:
    row = logits(0.1, 0.4, 0.2, 0.2, 0.1, 0, 0)
    found = between(TARGET, DRAFT).inside(row, b"un")
    assert found is not None
    assert probs(found[0]) == pytest.approx([0, 2 / 3, 1 / 3, 0, 0, 0, 0], abs=1e-6)
    assert found[1] == pytest.approx(0.6 / 0.2), "as likely as that the token 'un' is all"
    assert between(TARGET, DRAFT).inside(row, b" t") is None, "the target has ' the' as well"
    assert between(TARGET, DRAFT).inside(row, b"able") is None


def test_figures() -> None:
    made = between(TARGET, DRAFT)
    assert made.shared == pytest.approx(3 / 6)
    assert made.shared_part([0, 3, 1, 2]) == 0.5
    assert made.told == 1.0
    assert made.sample == [0, 2, 3]
    assert made.room(100) == 100, "the draft model writes it with fewer tokens"
    assert between([b"unable the"], [b"u", b"n", b"a"]).room(100) > 300
    assert made.may_grow(b"bel")
    assert not made.may_grow(b"un")
    assert not made.may_grow(b"able")


spelled = st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b"abb", b"c", b""]), min_size=3)


@examples(60)
@given(spelled, spelled, st.data())
def test_every_row_is_a_distribution_over_what_both_can_say(
    target: list[bytes], draft: list[bytes], data: st.DataObject
) -> None:
    made = VocabularyMap(ByteVocabulary(target), ByteVocabulary(draft))
    weights = data.draw(st.lists(st.integers(0, 5), min_size=len(draft), max_size=len(draft)))
    found = made.on_shared(logits(*weights))
    assert found.shape == (len(target),)
    assert np.isfinite(found).all()
    told = {i for i in range(len(draft)) if weights[i] and made.begins(i) >= 0}
    if told:
        likely = set(np.flatnonzero(probs(found) > 1e-6).tolist())
        assert likely == {made.begins(i) for i in told}
        wanted = sum(weights[i] for i in told if made.begins(i) == min(likely))
        share = wanted / sum(weights[i] for i in told)
        assert probs(found)[min(likely)] == pytest.approx(share, abs=1e-4)
