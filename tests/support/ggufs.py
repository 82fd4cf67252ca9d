"""Small GGUF files with random weights that llama.cpp loads and decodes.

Every function writes one file and returns its path. The bytes depend only on the arguments (numpy's
seeded generator), the tokenizer is the embedded model's, and nothing here imports `llama_cpp`.

Matrices are drawn with a standard deviation of gain / sqrt(fan-in), so activations stay near 1, and
the (tied) token embeddings with `_LOGIT_STD` / sqrt(dim), so the logits' standard deviation over
the vocabulary is about `_LOGIT_STD`. With gains of 1, greedy text would soon be one token over and
over: attention averages the context, and a token's own embedding dominates its logits. Hence the
larger gains of queries and keys, and of what the layers add to the residual stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import (
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    PoolingType,
    TokenType,
)
from gguf.quants import quantize

_EMBEDDED_MODEL = Path(__file__).resolve().parents[2] / "models" / "tale-3m-q8_0.gguf"
_CHAT_TEMPLATE = "tokenizer.chat_template"
_TOKENS = "tokenizer.ggml.tokens"
_TOKEN_TYPES = "tokenizer.ggml.token_type"
_LOGIT_STD = 2.0
_QUERY_KEY_GAIN = 2.0
_DOWN_GAIN = 4.0
_Q8_0_WEIGHTS_PER_BLOCK = 32
_Q8_0_BYTES_PER_BLOCK = 34

_Tensor = npt.NDArray[Any]
_MakeMatrix = Callable[[np.random.Generator, int, int, float], _Tensor]


@dataclass(frozen=True)
class _Field:
    """One metadata entry, with its GGUF types (`item_type` only for arrays)."""

    value: Any
    value_type: GGUFValueType
    item_type: GGUFValueType | None = None


def tiny_llama(
    path: Path,
    *,
    dim: int = 64,
    layers: int = 2,
    heads: int = 2,
    ff: int = 128,
    context: int = 512,
    seed: int = 0,
    vocab_size: int | None = None,
    swap_tokens: tuple[int, int] | None = None,
    chat_template: str | None = None,
    tokenizer: bool = True,
    more: bool = False,
    half_norm: bool = False,
) -> Path:
    """Write a llama model with f16 matrices, f32 norms and tied embeddings.

    The weights do not depend on `vocab_size` but for the added rows of the embeddings, nor on
    `swap_tokens`, `chat_template` or `tokenizer`.
    """
    if tokenizer:
        vocabulary = _vocabulary(size=vocab_size, swap=swap_tokens, chat_template=chat_template)
        n_vocab = len(vocabulary[_TOKENS].value)
    elif swap_tokens is not None or chat_template:
        raise ValueError("swap_tokens and chat_template need a tokenizer")
    else:
        vocabulary = {"tokenizer.ggml.model": _Field("none", GGUFValueType.STRING)}
        n_vocab = vocab_size if vocab_size is not None else _embedded_vocab_size()
    return _write_llama(
        path,
        vocabulary=vocabulary,
        n_vocab=n_vocab,
        dim=dim,
        layers=layers,
        heads=heads,
        ff=ff,
        context=context,
        seed=seed,
        make_matrix=_f16_matrix,
        file_type=LlamaFileType.MOSTLY_F16,
        more=more,
        half_norm=half_norm,
    )


def aborting_llama(path: Path) -> Path:
    """Write a model that llama.cpp opens, and that makes it abort with the first token.

    Its last norm is in F16, which the processor's kernels do not multiply with (binary-ops.cpp).
    Nothing is wrong with the file: those of other devices do.
    """
    return tiny_llama(path, half_norm=True)


def sized_llama(
    path: Path,
    *,
    dim: int = 1024,
    layers: int = 12,
    ff: int = 2816,
    heads: int = 16,
    context: int = 512,
    seed: int = 0,
) -> Path:
    """Write a llama model with Q8_0 matrices, large enough that a pass takes 10 ms and more.

    The defaults make a file of 173 MB, written in about 1 s. On 2 cores of a Xeon with AVX-512,
    with 2 threads and without AMX, one token takes 15 ms, a batch of 4 tokens 27 ms and one of 8
    tokens 43 ms; the time goes with the file's size (8 layers: 118 MB, 11 ms; 16: 228 MB, 18
    ms).
    """
    return _write_llama(
        path,
        vocabulary=_vocabulary(),
        n_vocab=_embedded_vocab_size(),
        dim=dim,
        layers=layers,
        heads=heads,
        ff=ff,
        context=context,
        seed=seed,
        make_matrix=_q8_0_matrix,
        file_type=LlamaFileType.MOSTLY_Q8_0,
    )


def tiny_mamba(path: Path, *, seed: int = 0) -> Path:
    """Write a mamba model: recurrent memory only, which cannot be rolled back.

    2 layers of width 64 (inner width 128, state size 16), 8,192 tokens, 512 tokens of context.
    """
    dim, layers, inner, state, conv, dt_rank = 64, 2, 128, 16, 4, 4
    rng = np.random.default_rng(seed)
    writer = _writer(path, "mamba", "tiny-mamba", LlamaFileType.MOSTLY_F16, _vocabulary())
    _add_sizes(writer, dim=dim, layers=layers, context=512, n_vocab=_embedded_vocab_size())
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(conv)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(dt_rank)
    decay = np.tile(-np.linspace(0.5, 4.0, state, dtype=np.float32), (inner, 1))
    for i in range(layers):
        block = f"blk.{i}"
        _add(writer, f"{block}.attn_norm.weight", _ones(dim))
        _add(writer, f"{block}.ssm_in.weight", _f16_matrix(rng, 2 * inner, dim, 1.0))
        _add(writer, f"{block}.ssm_conv1d.weight", _f32_matrix(rng, inner, conv, 1.0))
        _add(writer, f"{block}.ssm_conv1d.bias", _zeros(inner))
        _add(writer, f"{block}.ssm_x.weight", _f16_matrix(rng, dt_rank + 2 * state, inner, 2.0))
        _add(writer, f"{block}.ssm_dt.weight", _f16_matrix(rng, inner, dt_rank, 0.5))
        # Time steps of softplus(-1) = 0.3: the state forgets over 1 to 6 tokens.
        _add(writer, f"{block}.ssm_dt.bias", -_ones(inner))
        _add(writer, f"{block}.ssm_a", decay)
        _add(writer, f"{block}.ssm_d", _ones(inner))
        _add(writer, f"{block}.ssm_out.weight", _f16_matrix(rng, dim, inner, _DOWN_GAIN))
    _add(writer, "output_norm.weight", _ones(dim))
    _add(writer, "token_embd.weight", _embeddings(rng, dim, _f16_matrix))
    return _finish(writer, path)


def tiny_hybrid(path: Path, *, seed: int = 0) -> Path:
    """Write an lfm2 model: 2 short convolutions around 1 attention layer, width 64.

    Its memory is part recurrent. llama.cpp can roll it back, but only within the last batch:
    `llama_memory_seq_rm` accepts to remove up to the context's `n_rs_seq` tokens, and the state is
    right only if the last batch had more tokens than are removed. 8,192 tokens, 512 tokens of
    context.
    """
    dim, heads, ff, conv = 64, 2, 128, 3
    kv_heads = [0, heads, 0]  # 0 makes a layer recurrent
    rng = np.random.default_rng(seed)
    writer = _writer(path, "lfm2", "tiny-hybrid", LlamaFileType.MOSTLY_F16, _vocabulary())
    _add_sizes(writer, dim=dim, layers=len(kv_heads), context=512, n_vocab=_embedded_vocab_size())
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_shortconv_l_cache(conv)
    for i, n_kv in enumerate(kv_heads):
        block = f"blk.{i}"
        _add(writer, f"{block}.attn_norm.weight", _ones(dim))
        if n_kv:
            _add_attention(writer, rng, block, dim=dim, make_matrix=_f16_matrix)
            _add(writer, f"{block}.attn_q_norm.weight", _ones(dim // heads))
            _add(writer, f"{block}.attn_k_norm.weight", _ones(dim // heads))
        else:
            in_proj = _f16_matrix(rng, 3 * dim, dim, 1.0)
            out_proj = _f16_matrix(rng, dim, dim, _DOWN_GAIN)
            _add(writer, f"{block}.shortconv.conv.weight", _f32_matrix(rng, dim, conv, 1.0))
            _add(writer, f"{block}.shortconv.in_proj.weight", in_proj)
            _add(writer, f"{block}.shortconv.out_proj.weight", out_proj)
        _add_feed_forward(writer, rng, block, dim=dim, ff=ff, make_matrix=_f16_matrix)
    _add(writer, "token_embd_norm.weight", _ones(dim))  # lfm2's name of the output norm
    _add(writer, "token_embd.weight", _embeddings(rng, dim, _f16_matrix))
    return _finish(writer, path)


def tiny_bert(path: Path, *, seed: int = 0) -> Path:
    """Write a bert model: embeddings only, no memory, no logits.

    2 layers of width 64, 512 positions, mean pooling, attention both ways. The vocabulary is the
    embedded model's (llama.cpp takes any for this architecture), so that the vocabulary is not what
    tells it from the other files here.
    """
    dim, layers, heads, ff, context, token_types = 64, 2, 2, 128, 512, 2
    rng = np.random.default_rng(seed)
    vocabulary = _vocabulary(chat_template="")
    writer = _writer(path, "bert", "tiny-bert", LlamaFileType.MOSTLY_F16, vocabulary)
    _add_sizes(writer, dim=dim, layers=layers, context=context, n_vocab=_embedded_vocab_size())
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    writer.add_token_type_count(token_types)
    _add(writer, "position_embd.weight", _f32_matrix(rng, context, dim, 1.0))
    _add(writer, "token_types.weight", _f32_matrix(rng, token_types, dim, 1.0))
    _add_layer_norm(writer, "token_embd_norm", dim)
    for i in range(layers):
        block = f"blk.{i}"
        _add_attention(writer, rng, block, dim=dim, make_matrix=_f16_matrix)
        _add_layer_norm(writer, f"{block}.attn_output_norm", dim)
        _add(writer, f"{block}.ffn_up.weight", _f16_matrix(rng, ff, dim, 1.0))
        _add(writer, f"{block}.ffn_down.weight", _f16_matrix(rng, dim, ff, _DOWN_GAIN))
        _add_layer_norm(writer, f"{block}.layer_output_norm", dim)
    _add(writer, "token_embd.weight", _embeddings(rng, dim, _f16_matrix))
    return _finish(writer, path)


def _write_llama(
    path: Path,
    *,
    vocabulary: dict[str, _Field],
    n_vocab: int,
    dim: int,
    layers: int,
    heads: int,
    ff: int,
    context: int,
    seed: int,
    make_matrix: _MakeMatrix,
    file_type: LlamaFileType,
    more: bool = False,
    half_norm: bool = False,
) -> Path:
    """Write a llama model whose matrices come from `make_matrix`."""
    if dim % (2 * heads):
        raise ValueError(f"dim / heads must be an even number, not {dim} / {heads}")
    rng = np.random.default_rng(seed)
    writer = _writer(path, "llama", f"llama-{dim}x{layers}", file_type, vocabulary)
    _add_sizes(writer, dim=dim, layers=layers, context=context, n_vocab=n_vocab)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(dim // heads)
    for i in range(layers):
        block = f"blk.{i}"
        _add(writer, f"{block}.attn_norm.weight", _ones(dim))
        _add_attention(writer, rng, block, dim=dim, make_matrix=make_matrix)
        _add_feed_forward(writer, rng, block, dim=dim, ff=ff, make_matrix=make_matrix)
    _add(writer, "output_norm.weight", _ones(dim).astype(np.float16 if half_norm else np.float32))
    _add(writer, "token_embd.weight", make_matrix(rng, n_vocab, dim, _LOGIT_STD))
    if more:
        _add(writer, "output.weight", make_matrix(rng, n_vocab, dim, _LOGIT_STD))
        _add(writer, "rope_freqs.weight", np.linspace(1, 4, dim // heads // 2, dtype=np.float32))
        biased = {"ffn_gate": ff, "ffn_up": ff, "ffn_down": dim}
        biased |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), dim)
        for i in range(layers):
            for name, width in biased.items():
                bias = rng.standard_normal(width, dtype=np.float32)
                _add(writer, f"blk.{i}.{name}.bias", bias)
    return _finish(writer, path)


def _add_attention(
    writer: GGUFWriter,
    rng: np.random.Generator,
    block: str,
    *,
    dim: int,
    make_matrix: _MakeMatrix,
) -> None:
    """Add one layer's query, key, value and output matrices, each (dim, dim)."""
    gains = {
        "attn_q": _QUERY_KEY_GAIN,
        "attn_k": _QUERY_KEY_GAIN,
        "attn_v": 1.0,
        "attn_output": 1.0,
    }
    for name, gain in gains.items():
        _add(writer, f"{block}.{name}.weight", make_matrix(rng, dim, dim, gain))


def _add_feed_forward(
    writer: GGUFWriter,
    rng: np.random.Generator,
    block: str,
    *,
    dim: int,
    ff: int,
    make_matrix: _MakeMatrix,
) -> None:
    """Add one layer's gated feed-forward: gate and up (ff, dim), down (dim, ff), and its norm."""
    _add(writer, f"{block}.ffn_norm.weight", _ones(dim))
    _add(writer, f"{block}.ffn_gate.weight", make_matrix(rng, ff, dim, 1.0))
    _add(writer, f"{block}.ffn_up.weight", make_matrix(rng, ff, dim, 1.0))
    _add(writer, f"{block}.ffn_down.weight", make_matrix(rng, dim, ff, _DOWN_GAIN))


def _add_layer_norm(writer: GGUFWriter, name: str, dim: int) -> None:
    """Add the weight (ones) and bias (zeros) of a layer norm, each (dim,)."""
    _add(writer, f"{name}.weight", _ones(dim))
    _add(writer, f"{name}.bias", _zeros(dim))


def _add_sizes(writer: GGUFWriter, *, dim: int, layers: int, context: int, n_vocab: int) -> None:
    """Add the sizes every architecture has."""
    writer.add_context_length(context)
    writer.add_embedding_length(dim)
    writer.add_block_count(layers)
    writer.add_vocab_size(n_vocab)


def _f32_matrix(rng: np.random.Generator, rows: int, cols: int, gain: float) -> _Tensor:
    """Draw (rows, cols) weights of standard deviation gain / sqrt(cols), float32."""
    weights = rng.standard_normal((rows, cols), dtype=np.float32)
    return weights * np.float32(gain / np.sqrt(cols))


def _f16_matrix(rng: np.random.Generator, rows: int, cols: int, gain: float) -> _Tensor:
    """Draw (rows, cols) weights of standard deviation gain / sqrt(cols), float16."""
    return _f32_matrix(rng, rows, cols, gain).astype(np.float16)


def _q8_0_matrix(rng: np.random.Generator, rows: int, cols: int, gain: float) -> _Tensor:
    """Draw Q8_0 weights of standard deviation gain / sqrt(cols), (rows, 34 * cols / 32) bytes.

    Quantizing is the slow part, so only some thousand blocks are quantized, and the matrix is put
    together from random ones of them: any two rows still differ.
    """
    per_row = cols // _Q8_0_WEIGHTS_PER_BLOCK
    if cols % _Q8_0_WEIGHTS_PER_BLOCK:
        raise ValueError(f"Q8_0 needs a multiple of {_Q8_0_WEIGHTS_PER_BLOCK} columns, not {cols}")
    n_pool = min(rows * per_row, 4096)
    pool_weights = rng.standard_normal((n_pool, _Q8_0_WEIGHTS_PER_BLOCK), dtype=np.float32)
    pool_weights *= np.float32(gain / np.sqrt(cols))
    pool: _Tensor = quantize(pool_weights, GGMLQuantizationType.Q8_0)
    blocks = pool[rng.integers(n_pool, size=rows * per_row)]
    return blocks.reshape(rows, per_row * _Q8_0_BYTES_PER_BLOCK)


def _embeddings(rng: np.random.Generator, dim: int, make_matrix: _MakeMatrix) -> _Tensor:
    """Draw the token embeddings, (embedded vocabulary's size, dim)."""
    return make_matrix(rng, _embedded_vocab_size(), dim, _LOGIT_STD)


def _ones(n: int) -> _Tensor:
    """Return (n,) float32 ones."""
    return np.ones(n, dtype=np.float32)


def _zeros(n: int) -> _Tensor:
    """Return (n,) float32 zeros."""
    return np.zeros(n, dtype=np.float32)


def _writer(
    path: Path,
    arch: str,
    name: str,
    file_type: LlamaFileType,
    vocabulary: dict[str, _Field],
) -> GGUFWriter:
    """Start a file: architecture, name, and the vocabulary's metadata."""
    writer = GGUFWriter(path, arch)
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    for key, field in vocabulary.items():
        writer.add_key_value(key, field.value, field.value_type, field.item_type)
    return writer


def _add(writer: GGUFWriter, name: str, tensor: _Tensor) -> None:
    """Add a tensor, its dimensions in numpy's order (rows first); bytes are taken as Q8_0."""
    quantized = tensor.dtype == np.uint8
    writer.add_tensor(name, tensor, raw_dtype=GGMLQuantizationType.Q8_0 if quantized else None)


def _finish(writer: GGUFWriter, path: Path) -> Path:
    """Write everything added so far, close the file and return its path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(
    *,
    size: int | None = None,
    swap: tuple[int, int] | None = None,
    chat_template: str | None = None,
) -> dict[str, _Field]:
    """Return the embedded model's tokenizer metadata, changed as `tiny_llama` describes."""
    fields = dict(_embedded_vocabulary())
    tokens: list[str] = list(fields[_TOKENS].value)
    types: list[int] = list(fields[_TOKEN_TYPES].value)
    if size is not None:
        if size < len(tokens):
            raise ValueError(f"vocab_size must be {len(tokens)} or more, not {size}")
        types += [int(TokenType.NORMAL)] * (size - len(tokens))
        tokens += [f"<pad-{i}>" for i in range(len(tokens), size)]
    if swap is not None:
        a, b = swap
        tokens[a], tokens[b] = tokens[b], tokens[a]
    fields[_TOKENS] = replace(fields[_TOKENS], value=tokens)
    fields[_TOKEN_TYPES] = replace(fields[_TOKEN_TYPES], value=types)
    if chat_template == "":
        fields.pop(_CHAT_TEMPLATE, None)
    elif chat_template is not None:
        fields[_CHAT_TEMPLATE] = _Field(chat_template, GGUFValueType.STRING)
    return fields


def _embedded_vocab_size() -> int:
    """Return the number of tokens of the embedded model."""
    tokens: Sequence[str] = _embedded_vocabulary()[_TOKENS].value
    return len(tokens)


@functools.cache
def _embedded_vocabulary() -> dict[str, _Field]:
    """Read the tokenizer metadata of the embedded model, by key; not to be changed in place."""
    reader = GGUFReader(_EMBEDDED_MODEL)
    fields: dict[str, _Field] = {}
    for key, field in reader.fields.items():
        if key.startswith("tokenizer."):
            item_type = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            fields[key] = _Field(field.contents(), field.types[0], item_type)
    return fields
