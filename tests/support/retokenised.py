"""Models with another tokenizer and the same weights, so that they still speak as sensibly.

The sources are the embedded models, or others with their vocabulary. A row of the (tied)
embeddings belongs to a token; with the rows goes what the model knows of it. Rows are left out, put
in another order, and named in another way.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, TokenType

from tests.support.gguf_files import gguf_file, written

_EMBEDDINGS = "token_embd.weight"
_SPECIAL = 5  # the embedded vocabulary begins with so many control tokens


def permuted(path: Path, source: Path, *, seed: int = 0, removed: float = 0.0) -> Path:
    """Write a copy whose tokens have other ids, and some of them are gone."""
    reader = gguf_file(source)
    tokens, merges = _tokens(reader), _merges(reader)
    rng = np.random.default_rng(seed)
    parts = {part for merge in merges for part in merge.split(" ")}
    leaves = [i for i, token in enumerate(tokens) if len(token) > 1 and token not in parts]
    leaves = [i for i in leaves if i >= _SPECIAL]
    gone = set(rng.permutation(leaves)[: int(removed * len(leaves))].tolist())
    order = rng.permutation([i for i in range(len(tokens)) if i not in gone]).tolist()
    left = {tokens[i] for i in order}
    kept_merges = [merge for merge in merges if merge.replace(" ", "") in left]
    return _write_bpe(path, reader, order, kept_merges)


def bytewise(path: Path, source: Path, *, kept: str = "") -> Path:
    """Write a copy that knows single bytes, all or the ones kept, and control tokens only."""
    reader = gguf_file(source)
    order = [
        i
        for i, token in enumerate(_tokens(reader))
        if i < _SPECIAL or (len(token) == 1 and (not kept or token in kept))
    ]
    return _write_bpe(path, reader, order, [])


def sentencepiece(path: Path, source: Path) -> Path:
    """Write a copy with a SentencePiece tokenizer: ▁ for spaces, <0x0A> for bytes, <s> and </s>."""
    reader = gguf_file(source)
    pieces: list[tuple[str, int, float, int]] = [
        ("<unk>", 0, 0.0, TokenType.UNKNOWN),
        ("<s>", 0, 0.0, TokenType.CONTROL),
        ("</s>", 4, 0.0, TokenType.CONTROL),
        ("<|user|>", 2, 0.0, TokenType.CONTROL),
    ]
    pieces += _spaced_pieces(reader)
    writer = _writer(path, reader, "spm")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, *_ in pieces])
    writer.add_token_scores([score for _, _, score, _ in pieces])
    writer.add_token_types([kind for *_, kind in pieces])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    return _finish(writer, path, reader, [row for _, row, *_ in pieces])


def _spaced_pieces(reader: GGUFReader) -> list[tuple[str, int, float, int]]:
    """Ordinary tokens as SentencePiece has them, and all bytes: text, row, score and type."""
    pieces: list[tuple[str, int, float, int]] = []
    single = {}
    for i, token in enumerate(_tokens(reader)):
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


def outfitted(
    path: Path,
    source: Path,
    *,
    template: str | None = None,
    tool_template: str | None = None,
    filling: Sequence[str] = (),
) -> Path:
    """Write a copy with the same tokens, and another template or tokens for filling in the
    middle."""
    reader = gguf_file(source)
    tokens = _tokens(reader)
    ids = {
        f"tokenizer.ggml.fim_{name}_token_id": tokens.index(token)
        for name, token in zip(("pre", "suf", "mid"), filling, strict=False)
    }
    order = range(len(tokens))
    return _write_bpe(
        path, reader, order, _merges(reader), template=template, tools=tool_template, ids=ids
    )


def furnished(
    path: Path, source: Path, special: Sequence[tuple[str, int]], *, template: str, spaced: bool
) -> Path:
    """Write a copy with other special tokens, of which the first is BOS and the second EOS, without
    the source's own."""
    reader = gguf_file(source)
    writer = _writer(path, reader, "furnished", template)
    rows = [n % _SPECIAL for n in range(len(special))]
    if spaced:
        pieces = [("<0x00>unknown", 0, 0.0, int(TokenType.UNKNOWN)), *_spaced_pieces(reader)]
        plain = [(text, row, score, kind) for text, row, score, kind in pieces]
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * len(special) + [score for *_, score, _ in plain])
        writer.add_add_space_prefix(True)
    else:
        tokens = _tokens(reader)
        plain = [(tokens[n], n, 0.0, int(TokenType.NORMAL)) for n in range(_SPECIAL, len(tokens))]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(_merges(reader))
    writer.add_token_list([text for text, _ in special] + [text for text, *_ in plain])
    writer.add_token_types([int(kind) for _, kind in special] + [kind for *_, kind in plain])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    return _finish(writer, path, reader, rows + [row for _, row, *_ in plain])


def _write_bpe(
    path: Path,
    reader: GGUFReader,
    order: Sequence[int],
    merges: Sequence[str],
    *,
    template: str | None = None,
    tools: str | None = None,
    ids: Mapping[str, int] | None = None,
) -> Path:
    tokens = _tokens(reader)
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    writer = _writer(path, reader, "bpe", template)
    if tools is not None:
        writer.add_string("tokenizer.chat_template.tool_use", tools)
    for key, token in (ids or {}).items():
        writer.add_uint32(key, token)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[i] for i in order])
    writer.add_token_types([types[i] for i in order])
    # A list may not be empty, and llama.cpp wants one: this merge never applies.
    writer.add_token_merges(list(merges) or ["\u0100 \u0100"])
    writer.add_bos_token_id(order.index(0))
    writer.add_eos_token_id(order.index(0))
    writer.add_eot_token_id(order.index(4))
    writer.add_add_bos_token(True)
    return _finish(writer, path, reader, order)


def _writer(path: Path, reader: GGUFReader, name: str, template: str | None = None) -> GGUFWriter:
    architecture = str(reader.fields["general.architecture"].contents())
    writer = GGUFWriter(path, architecture)
    for key, field in reader.fields.items():
        if key.startswith(f"{architecture}.") and not key.endswith(".vocab_size"):
            item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], item)
    writer.add_name(f"tale-{name}")
    writer.add_file_type(int(reader.fields["general.file_type"].contents()))
    writer.add_quantization_version(2)
    template = template or reader.fields["tokenizer.chat_template"].contents()
    writer.add_key_value("tokenizer.chat_template", template, GGUFValueType.STRING)
    return writer


def _finish(writer: GGUFWriter, path: Path, reader: GGUFReader, rows: Sequence[int]) -> Path:
    writer.add_vocab_size(len(rows))
    for tensor in reader.tensors:
        data: npt.NDArray[Any] = tensor.data
        if tensor.name == _EMBEDDINGS:
            data = data[np.asarray(rows)]
        quantized = data.dtype == np.uint8
        kind = GGMLQuantizationType(tensor.tensor_type) if quantized else None
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=kind)
    return written(writer, path)


def _tokens(reader: GGUFReader) -> list[str]:
    return list(reader.fields["tokenizer.ggml.tokens"].contents())


def _merges(reader: GGUFReader) -> list[str]:
    return list(reader.fields["tokenizer.ggml.merges"].contents())


@functools.cache
def _byte_of() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others follow 0x100."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    found = {chr(b): b for b in plain}
    others = [b for b in range(256) if b not in plain]
    return found | {chr(0x100 + n): b for n, b in enumerate(others)}
