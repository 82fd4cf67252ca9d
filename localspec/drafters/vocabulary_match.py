"""Matching the vocabularies of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.drafters.byte_vocabulary import ByteVocabulary, control
from localspec.drafters.heterogeneous import SAMPLE
from localspec.drafters.vocabulary_map import VocabularyMap
from localspec.errors import DraftMismatch

if TYPE_CHECKING:
    from localspec.llama.vocabulary import TokenBytes

LEAST_TOLD = 0.5
"""Part of the sample text that a draft model must have tokens for."""


def match(target: TokenBytes, draft: TokenBytes) -> VocabularyMap:
    """The map from a draft model's tokens to a target's.

    Control tokens match by name, and by role: beginning of text, end of turn, end of text.

    Raises:
        DraftMismatch: the draft model has no tokens for ordinary text.
    """
    ours, theirs = _spelled(target), _spelled(draft)
    named = set(ours)
    roles = (target.bos, draft.bos), (target.eot, draft.eot), (target.eos, draft.eos)
    for one, other in roles:
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


def _spelled(vocabulary: TokenBytes) -> list[bytes]:
    return [
        control(piece) if token in vocabulary.controls else piece
        for token, piece in enumerate(vocabulary.pieces)
    ]
