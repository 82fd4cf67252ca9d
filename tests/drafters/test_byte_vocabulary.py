"""Vocabularies as bytes: whatever the tokenizer is like, its tokens spell the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.drafters.byte_vocabulary import ByteVocabulary, Sorted, control
from tests.support.toys import examples

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


def test_ends_say_how_much_of_the_text_is_covered() -> None:
    assert [end for _, end in ByteVocabulary(WORDS).encode(b"axab" + control(b"end"))] == [1, 4, 11]


def test_tokenizer_that_changes_the_text_is_not_asked() -> None:
    def lower(text: bytes) -> Sequence[int]:
        return [token for token, _ in ByteVocabulary(WORDS).encode(text.lower())]

    assert spell(ByteVocabulary([*WORDS, b"A"], lower), b"Aab") == [b"A", b"ab"]


def test_byte_tokens_come_second() -> None:
    assert ByteVocabulary([b"a", b"a"], second_best=[0]).ids[b"a"] == 1
    assert ByteVocabulary([b"a", b"a"]).ids[b"a"] == 0


short = st.binary(max_size=3)


@examples(100)
@given(st.lists(short, max_size=12), short)
def test_tokens_beyond_a_beginning(spelled: list[bytes], start: bytes) -> None:
    found = Sorted(range(len(spelled)), spelled)
    wanted = {i for i, s in enumerate(spelled) if s.startswith(start) and s != start}
    assert set(found.tokens[found.beyond(start)]) == wanted
