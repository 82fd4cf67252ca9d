"""Models with another tokenizer and the same weights, so that their text stays meaningful.

The sources are the built-in models, or others with their vocabulary. Rows of the (tied) embeddings
belong to tokens: they are left out, reordered and renamed.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import TokenType

from tests.support.gguf_files import fields, gguf_file, write_gguf

_EMBEDDINGS = "token_embd.weight"
_SPECIAL = 5  # the embedded vocabulary begins with so many control tokens

Piece = tuple[str, int, float, int]
"""A token: its text, the row of the embeddings, its score and its type."""


def permuted(path: Path, source: Path, *, seed: int = 0, removed: float = 0.0) -> Path:
    """Write a copy whose tokens have other ids, without a share `removed` of them."""
    tokens, merges = _tokens(source), _merges(source)
    rng = np.random.default_rng(seed)
    parts = {part for merge in merges for part in merge.split(" ")}
    leaves = [i for i, token in enumerate(tokens) if len(token) > 1 and token not in parts]
    leaves = [i for i in leaves if i >= _SPECIAL]
    gone = set(rng.permutation(leaves)[: int(removed * len(leaves))].tolist())
    order = rng.permutation([i for i in range(len(tokens)) if i not in gone]).tolist()
    left = {tokens[i] for i in order}
    kept_merges = [merge for merge in merges if merge.replace(" ", "") in left]
    return _write_bpe(path, source, order, kept_merges)


def bytewise(path: Path, source: Path, *, kept: str = "") -> Path:
    """Write a copy with control tokens and single bytes only, all or those in `kept`."""
    order = [
        i
        for i, token in enumerate(_tokens(source))
        if i < _SPECIAL or (len(token) == 1 and (not kept or token in kept))
    ]
    return _write_bpe(path, source, order, [])


def with_template(
    path: Path,
    source: Path,
    *,
    template: str | None = None,
    tool_template: str | None = None,
    filling: Sequence[str] = (),
) -> Path:
    """Write a copy with another template, or with tokens for infilling."""
    tokens = _tokens(source)
    ids = {
        f"fim_{name}": tokens.index(token)
        for name, token in zip(("pre", "suf", "mid"), filling, strict=False)
    }
    templates = {"": template, ".tool_use": tool_template}
    return _write_bpe(path, source, range(len(tokens)), _merges(source), templates, ids)


def sentencepiece(path: Path, source: Path) -> Path:
    """Write a copy with a SentencePiece tokenizer: ▁ for spaces, <0x0A> for bytes, <s> and </s>."""
    pieces: list[Piece] = [
        ("<unk>", 0, 0.0, TokenType.UNKNOWN),
        ("<s>", 0, 0.0, TokenType.CONTROL),
        ("</s>", 4, 0.0, TokenType.CONTROL),
        ("<|user|>", 2, 0.0, TokenType.CONTROL),
    ]
    pieces += _spaced_pieces(source)
    return _write(path, source, "spm", pieces, {"unknown": 0, "bos": 1, "eos": 2})


def with_special_tokens(
    path: Path, source: Path, special: Sequence[tuple[str, int]], *, template: str, spaced: bool
) -> Path:
    """Write a copy with other special tokens: first BOS, then EOS, and none of the source's."""
    pieces: list[Piece] = [
        (text, n % _SPECIAL, 0.0, kind) for n, (text, kind) in enumerate(special)
    ]
    tokens, merges = _tokens(source), None if spaced else _merges(source)
    if spaced:
        pieces += [("<0x00>unknown", 0, 0.0, TokenType.UNKNOWN), *_spaced_pieces(source)]
    else:
        ordinary = range(_SPECIAL, len(tokens))
        pieces += [(tokens[n], n, 0.0, TokenType.NORMAL) for n in ordinary]
    ids = {"bos": 0, "eos": 1}
    return _write(path, source, "special", pieces, ids, merges, {"": template})


def _spaced_pieces(source: Path) -> list[Piece]:
    """Ordinary tokens in SentencePiece's form, and all bytes."""
    pieces: list[Piece] = []
    single = {}
    for i, token in enumerate(_tokens(source)):
        if i < _SPECIAL:
            continue
        spelled = bytes(_byte_of()[character] for character in token)
        if len(spelled) == 1:
            single[spelled[0]] = i
        try:
            text = spelled.decode()
        except UnicodeDecodeError:
            continue
        pieces.append((text.replace(" ", "\u2581"), i, -float(i), TokenType.NORMAL))
    pieces += [(f"<0x{b:02X}>", single[b], 0.0, TokenType.BYTE) for b in range(256)]
    return pieces


def _write_bpe(
    path: Path,
    source: Path,
    order: Sequence[int],
    merges: Sequence[str],
    templates: Mapping[str, str | None] | None = None,
    ids: Mapping[str, int] | None = None,
) -> Path:
    """A copy with these of the source's tokens."""
    tokens = _tokens(source)
    types = gguf_file(source).fields["tokenizer.ggml.token_type"].contents()
    ends = {"bos": order.index(0), "eos": order.index(0), "eot": order.index(4)}
    pieces = [(tokens[i], i, 0.0, types[i]) for i in order]
    # A list may not be empty, and llama.cpp wants one: this merge never applies.
    merges = list(merges) or ["\u0100 \u0100"]
    return _write(path, source, "bpe", pieces, {**ends, **(ids or {})}, merges, templates)


def _write(
    path: Path,
    source: Path,
    name: str,
    pieces: Sequence[Piece],
    ids: Mapping[str, int],
    merges: Sequence[str] | None = None,
    templates: Mapping[str, str | None] | None = None,
) -> Path:
    """A copy with these tokens: GPT-2's with merges, else SentencePiece's."""
    reader = gguf_file(source)
    architecture = str(reader.fields["general.architecture"].contents())
    own = {"": reader.fields["tokenizer.chat_template"].contents()}
    own |= {which: template for which, template in (templates or {}).items() if template}
    keys: dict[str, Any] = {
        **fields(source, architecture),
        f"{architecture}.vocab_size": len(pieces),
        "general.name": f"tale-{name}",
        "general.file_type": int(reader.fields["general.file_type"].contents()),
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "llama" if merges is None else "gpt2",
        "tokenizer.ggml.tokens": [text for text, *_ in pieces],
        "tokenizer.ggml.token_type": [int(kind) for *_, kind in pieces],
        "tokenizer.ggml.add_bos_token": True,
        **{f"tokenizer.chat_template{which}": template for which, template in own.items()},
        **{f"tokenizer.ggml.{which}_token_id": token for which, token in ids.items()},
    }
    if merges is None:
        keys["tokenizer.ggml.scores"] = [score for _, _, score, _ in pieces]
        keys["tokenizer.ggml.add_space_prefix"] = True
    else:
        keys["tokenizer.ggml.pre"] = "gpt-2"
        keys["tokenizer.ggml.merges"] = list(merges)
    rows = np.array([row for _, row, *_ in pieces])
    tensors = {
        tensor.name: tensor.data[rows] if tensor.name == _EMBEDDINGS else tensor.data
        for tensor in reader.tensors
    }
    return write_gguf(path, architecture, keys, tensors)


def _tokens(source: Path) -> list[str]:
    return list(gguf_file(source).fields["tokenizer.ggml.tokens"].contents())


def _merges(source: Path) -> list[str]:
    return list(gguf_file(source).fields["tokenizer.ggml.merges"].contents())


@functools.cache
def _byte_of() -> dict[str, int]:
    """GPT-2's letters of bytes: printable ones are themselves, the others follow 0x100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    found = {chr(b): b for b in plain}
    others = [b for b in range(256) if b not in plain]
    return found | {chr(0x100 + n): b for n, b in enumerate(others)}
