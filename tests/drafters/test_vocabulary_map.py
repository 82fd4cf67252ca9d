"""Draft models of other vocabularies: their rows in the target's tokens, and which way these are
taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.interfaces import Plan
from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.heterogeneous import HeterogeneousDraftModel
from localspec.drafters.vocabulary_map import VocabularyMap
from tests.decoding.exact import run
from tests.support.tongues import TONGUES, heterogeneous
from tests.support.toys import (
    GREEDY,
    START,
    ToyCache,
    ToyModel,
    ToyTarget,
    examples,
    session_of,
    started,
)

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


# Vocabularies as bytes: whatever the tokenizer is like, its tokens spell the text.

WORDS = [b"", b"a", b"b", b"ab", b" ", b" a", b"\xc3", b"\xa9", "é".encode(), control(b"end")]


def spell(vocabulary: ByteVocabulary, text: bytes) -> list[bytes]:
    return [vocabulary.spelled[token] for token, _ in vocabulary.encode(text)]


def words(text: bytes) -> list[int]:
    """A tokenizer that puts a space in front, as SentencePiece does."""
    return [token for token, _ in ByteVocabulary(WORDS).encode(b" " + text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"", []),
        (b"aab", [b"a", b"ab"]),
        (b"ab a", [b"ab", b" a"]),
        ("éa".encode(), ["é".encode(), b"a"]),
        (b"a\xc3", [b"a", b"\xc3"]),
        (b"\xa9a", [b"\xa9", b"a"]),
        (b"a" + control(b"end") + b"b", [b"a", control(b"end"), b"b"]),
        (b"a" + control(b"other") + b"b", [b"a", b"b"]),
        (b"axb", [b"a", b"b"]),
    ],
)
@pytest.mark.parametrize("tokenize", [None, words], ids=["longest", "spaced"])
def test_text_is_spelled(text: bytes, wanted: list[bytes], tokenize: object) -> None:
    """Half a character, an unknown letter and an unknown control token included."""
    vocabulary = ByteVocabulary(WORDS, words if tokenize else None)
    assert spell(vocabulary, text) == wanted


def test_tokenizer_that_changes_the_text_is_not_asked() -> None:
    def lower(text: bytes) -> Sequence[int]:
        return [token for token, _ in ByteVocabulary(WORDS).encode(text.lower())]

    assert spell(ByteVocabulary([*WORDS, b"A"], lower), b"Aab") == [b"A", b"ab"]


# Which way the words of a draft model with another vocabulary are taken.

ALTERNATES = ToyModel([[0, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
"""A draft model that says "ba", again and again."""


def draft_model(
    way: str = "auto", spelled: str = "finer", *, capacity: int = 64
) -> HeterogeneousDraftModel:
    return heterogeneous(ToyCache(ALTERNATES, capacity=capacity), TONGUES[spelled], way=way)


def answer(model: HeterogeneousDraftModel, target: ToyModel, count: int = 40) -> None:
    session = session_of([START, 0, 1], params=GREEDY, count=count)
    source = model
    model.draws(greedy=True)
    source.begin(session.context)
    run(session, ToyTarget(target), source, Plan("model", 3))


def test_shared_tokens_serve_where_the_draft_model_has_nearly_all() -> None:
    model = draft_model(spelled="other ids")
    assert model.draws(greedy=False)
    assert model.credit == "model:shared"
    assert model.summary == (
        "different vocabulary: 100 % of tokens shared, drafting on the shared ones"
    )


def test_text_serves_where_it_lacks_many() -> None:
    """The sample is "abab", and it has no "ab"."""
    model = draft_model()
    assert not model.draws(greedy=True)
    assert model.mapped.chosen
    assert model.credit == "model:text"
    assert model.summary == "different vocabulary: 75 % of tokens shared, drafting through text"


def test_user_has_the_last_word() -> None:
    assert draft_model("shared").credit == "model:shared"
    assert draft_model("text", "other ids").credit == "model:text"


def test_written_tokens_are_chosen_only_where_much_is_lacking() -> None:
    model = draft_model("text", "other ids")
    assert model.draws(greedy=False)
    assert not model.mapped.chosen
    model = draft_model("text")
    assert not model.draws(greedy=False)
    assert model.mapped.chosen


def test_way_follows_what_came_true() -> None:
    says_ab, says_a_b = started([0, 0, 1]), started([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    model = draft_model()
    for _ in range(6):
        answer(model, says_ab)
    assert model.credit == "model:text", "every token was one that it put together"
    model = draft_model()
    model._lacks = 0.1  # as if the sample had said so: then the prompts do not
    for _ in range(12):
        answer(model, says_a_b)
        model._lacks = 0.1
    model.draws(greedy=True)
    assert model.credit == "model:shared", "what it put together was never right"
