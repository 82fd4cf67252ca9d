"""The tokens of a model as bytes, and the translation between those of two models."""

from __future__ import annotations

import llama_cpp

from localspec.drafters.byte_vocabulary import Lexicon, control
from localspec.drafters.heterogeneous import SAMPLE
from localspec.drafters.vocabulary_map import Translation
from localspec.errors import DraftMismatch
from localspec.llama.vocabulary import Vocabulary

LEAST_SPELLED = 0.5
"""Part of the sample text that a draft model must have tokens for."""


def translation(target: Vocabulary, draft: Vocabulary) -> Translation:
    """The way from a draft model's tokens to a target's.

    Control tokens of the same name are the same, and so are those that begin a text, and those
    that end a turn or a text, whatever they are called.

    Raises:
        DraftMismatch: the draft model has no tokens for ordinary text.
    """
    ours, theirs = _spelled(target), _spelled(draft)
    named = set(ours)
    for one, other in zip(_roles(target), _roles(draft), strict=True):
        if one >= 0 and other >= 0 and theirs[other] not in named and ours[one] not in theirs:
            theirs[other] = ours[one]
    from_target = Lexicon(ours, target.tokenize_bytes, second_best=_bytes(target))
    from_draft = Lexicon(theirs, draft.tokenize_bytes, second_best=_bytes(draft))
    made = Translation(
        from_target,
        from_draft,
        sample=SAMPLE.encode(),
        bos=draft.bos if draft.adds_bos else -1,
        dropped=target.bos,
    )
    if made.told < LEAST_SPELLED:
        raise DraftMismatch(
            "The draft model has another vocabulary than the model, and one without tokens for "
            "ordinary text. Choose another draft model, or pass --draft none."
        )
    return made


def _roles(vocabulary: Vocabulary) -> tuple[int, int, int]:
    """Beginning of text, end of turn, end of text; -1 for one that there is not."""
    turn = llama_cpp.llama_vocab_eot(vocabulary.handle)
    return vocabulary.bos, turn if turn >= 0 else vocabulary.eos, vocabulary.eos


def _spelled(vocabulary: Vocabulary) -> list[bytes]:
    kinds = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    attribute = llama_cpp.llama_vocab_get_attr
    spelled = []
    for token in range(vocabulary.size):
        if attribute(vocabulary.handle, token) & kinds:
            spelled.append(control(vocabulary.piece(token, special=True)))
        else:
            spelled.append(vocabulary.piece(token))
    return spelled


def _bytes(vocabulary: Vocabulary) -> list[int]:
    """Tokens that stand for one byte, where others may spell it too."""
    kind, attribute = llama_cpp.LLAMA_TOKEN_ATTR_BYTE, llama_cpp.llama_vocab_get_attr
    return [t for t in range(vocabulary.size) if attribute(vocabulary.handle, t) & kind]
