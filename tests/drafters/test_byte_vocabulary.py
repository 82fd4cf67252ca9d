"""Vocabularies as bytes: whatever the tokenizer is like, its tokens spell the text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.drafters.byte_vocabulary import ByteVocabulary, control

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
