"""Matching the vocabularies of two models."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.heterogeneous import SAMPLE
from localspec.drafters.vocabulary_map import VocabularyMap
from localspec.errors import DraftMismatch

LEAST_TOLD = 0.5
"""Part of the sample text that a draft model must have tokens for."""


class VocabularyBytes(Protocol):
    """A vocabulary as far as it is matched; `localspec.llama.vocabulary.TokenBytes` is one.

    Attributes:
        pieces: bytes of each token, of a control token its name; empty where it has none.
        controls: tokens that are no text, whatever their name.
        single_bytes: tokens that stand for one byte, where others may spell it too.
        tokenize: tokens of UTF-8 text, without control tokens.
        bos, eot, eos: -1 for none.
        adds_bos: whether a text begins with `bos`.
    """

    @property
    def pieces(self) -> Sequence[bytes]: ...

    @property
    def controls(self) -> Collection[int]: ...

    @property
    def single_bytes(self) -> Collection[int]: ...

    @property
    def tokenize(self) -> Callable[[bytes], Sequence[int]]: ...

    @property
    def bos(self) -> int: ...

    @property
    def eot(self) -> int: ...

    @property
    def eos(self) -> int: ...

    @property
    def adds_bos(self) -> bool: ...


def match(target: VocabularyBytes, draft: VocabularyBytes) -> VocabularyMap:
    """The map from a draft model's tokens to a target's.

    Control tokens match by name, and by role: beginning of text, end of turn, end of text.

    Raises:
        DraftMismatch: the draft model has no tokens for ordinary text.
    """
    ours, theirs = _spelled(target), _spelled(draft)
    named = set(ours)
    for one, other in zip(_roles(target), _roles(draft), strict=True):
        if one >= 0 and other >= 0 and theirs[other] not in named and ours[one] not in theirs:
            theirs[other] = ours[one]
    made = VocabularyMap(
        ByteVocabulary(ours, target.tokenize, second_best=target.single_bytes),
        ByteVocabulary(theirs, draft.tokenize, second_best=draft.single_bytes),
        sample=SAMPLE.encode(),
        bos=draft.bos if draft.adds_bos else -1,
        dropped=target.bos,
    )
    if made.told < LEAST_TOLD:
        raise DraftMismatch(
            "The draft model has another vocabulary than the model, and one without tokens for "
            "ordinary text. Choose another draft model, or pass --draft none."
        )
    return made


def _roles(vocabulary: VocabularyBytes) -> tuple[int, int, int]:
    return vocabulary.bos, vocabulary.eot, vocabulary.eos


def _spelled(vocabulary: VocabularyBytes) -> list[bytes]:
    return [
        control(piece) if token in vocabulary.controls else piece
        for token, piece in enumerate(vocabulary.pieces)
    ]
