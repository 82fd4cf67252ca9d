from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llama_cpp

from localspec.llama.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """A vocabulary as bytes: the pieces of tokens (of control tokens their names), tokens that are
    no text, tokens of one byte, and the special ones: end of turn is else end of text; -1 if
    missing."""

    pieces: Sequence[bytes]
    controls: frozenset[int]
    single_bytes: frozenset[int]
    tokenize: Callable[[bytes], Sequence[int]]
    bos: int
    eot: int
    eos: int
    adds_bos: bool


def token_bytes(vocabulary: Vocabulary) -> TokenBytes:
    unspoken = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    tokens = range(vocabulary.size)
    attributes = [llama_cpp.llama_vocab_get_attr(vocabulary.handle, token) for token in tokens]
    controls = frozenset(token for token in tokens if attributes[token] & unspoken)
    turn: int = llama_cpp.llama_vocab_eot(vocabulary.handle)
    return TokenBytes(
        pieces=[vocabulary.piece(token, special=token in controls) for token in tokens],
        controls=controls,
        single_bytes=frozenset(
            token for token in tokens if attributes[token] & llama_cpp.LLAMA_TOKEN_ATTR_BYTE
        ),
        tokenize=vocabulary.tokenize_bytes,
        bos=vocabulary.bos,
        eot=turn if turn >= 0 else vocabulary.eos,
        eos=vocabulary.eos,
        adds_bos=vocabulary.adds_bos,
    )
