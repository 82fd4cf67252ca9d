"""Small GGUF files with random weights that llama.cpp loads and decodes.

Every function writes one file and returns its path. The bytes depend only on the arguments, and the
tokenizer is the built-in model's. Matrices are drawn with a standard deviation of gain /
sqrt(fan-in), embeddings so that logits have one of about `LOGIT_STD`. With gains of 1, greedy text
would soon be one token over and over: attention averages the context, and a token's own embedding
dominates its logits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, LlamaFileType, PoolingType, TokenType
from gguf.quants import quantize

from localspec import paths
from tests.support.gguf_files import Field, Matrix, fields, sizes, within, write_gguf

_CHAT_TEMPLATE = "tokenizer.chat_template"
_TOKENS = "tokenizer.ggml.tokens"
_TOKEN_TYPES = "tokenizer.ggml.token_type"
LOGIT_STD = 2.0
_QUERY_KEY_GAIN = 2.0
_DOWN_GAIN = 4.0
_Q8_0_WEIGHTS_PER_BLOCK = 32
_Q8_0_BYTES_PER_BLOCK = 34

_MakeMatrix = Callable[[np.random.Generator, int, int, float], Matrix]


def f32_matrix(rng: np.random.Generator, rows: int, cols: int, gain: float) -> Matrix:
    """Weights of standard deviation gain / sqrt(cols)."""
    weights = rng.standard_normal((rows, cols), dtype=np.float32)
    return weights * np.float32(gain / np.sqrt(cols))


def _f16_matrix(rng: np.random.Generator, rows: int, cols: int, gain: float) -> Matrix:
    return f32_matrix(rng, rows, cols, gain).astype(np.float16)


def _q8_0_matrix(rng: np.random.Generator, rows: int, cols: int, gain: float) -> Matrix:
    """(rows, 34 * cols / 32) bytes.

    Quantizing is the slow part, so only some thousand blocks are quantized, and the matrix is put
    together from random ones of them: any two rows still differ.
    """
    per_row = cols // _Q8_0_WEIGHTS_PER_BLOCK
    n_pool = min(rows * per_row, 4096)
    pool = quantize(
        f32_matrix(rng, n_pool, _Q8_0_WEIGHTS_PER_BLOCK, gain * np.sqrt(1.0 / per_row)),
        GGMLQuantizationType.Q8_0,
    )
    blocks: Matrix = pool[rng.integers(n_pool, size=rows * per_row)]
    return blocks.reshape(rows, per_row * _Q8_0_BYTES_PER_BLOCK)


class ModelFile:
    """A file under construction: a model's sizes, then its tensors in the order of drawing.
    `sizes`: keys of the architecture's section."""

    def __init__(
        self,
        path: Path,
        architecture: str,
        vocabulary: Mapping[str, Field],
        sizes: Mapping[str, Any],
        *,
        name: str = "",
        n_vocab: int | None = None,
        context: int = 512,
        seed: int = 0,
        make_matrix: _MakeMatrix = _f16_matrix,
        file_type: LlamaFileType = LlamaFileType.MOSTLY_F16,
    ) -> None:
        self.path, self.architecture, self.dim = path, architecture, sizes["embedding_length"]
        self.n_vocab = n_vocab or len(_embedded_vocabulary()[_TOKENS][0])
        self.rng, self._make = np.random.default_rng(seed), make_matrix
        self.tensors: dict[str, Matrix] = {}
        own = {**sizes, "context_length": context, "vocab_size": self.n_vocab}
        self.keys: dict[str, Any] = {
            "general.name": name or f"tiny-{architecture}",
            "general.file_type": int(file_type),
            "general.quantization_version": 2,
            **vocabulary,
            **within(architecture, own),
        }

    def add(self, name: str, tensor: Matrix) -> None:
        self.tensors[name] = tensor

    def matrix(self, name: str, rows: int, cols: int, gain: float) -> None:
        self.add(f"{name}.weight", self._make(self.rng, rows, cols, gain))

    def f32(self, name: str, rows: int, cols: int) -> None:
        self.add(f"{name}.weight", f32_matrix(self.rng, rows, cols, 1.0))

    def norm(self, name: str, size: int | None = None, *, bias: bool = False) -> None:
        size = size or self.dim
        self.add(f"{name}.weight", np.ones(size, np.float32))
        if bias:
            self.add(f"{name}.bias", np.zeros(size, np.float32))

    def attention(self, block: str, query: int | None = None) -> None:
        """`query`: numbers of all queries of a token."""
        self.matrix(f"{block}.attn_q", query or self.dim, self.dim, _QUERY_KEY_GAIN)
        self.matrix(f"{block}.attn_k", self.dim, self.dim, _QUERY_KEY_GAIN)
        self.matrix(f"{block}.attn_v", self.dim, self.dim, 1.0)
        self.matrix(f"{block}.attn_output", self.dim, self.dim, 1.0)

    def feed_forward(self, block: str, ff: int) -> None:
        self.matrix(f"{block}.ffn_gate", ff, self.dim, 1.0)
        self.matrix(f"{block}.ffn_up", ff, self.dim, 1.0)
        self.matrix(f"{block}.ffn_down", self.dim, ff, _DOWN_GAIN)

    def embeddings(self) -> None:
        self.matrix("token_embd", self.n_vocab, self.dim, LOGIT_STD)

    def write(self) -> Path:
        return write_gguf(self.path, self.architecture, self.keys, self.tensors)


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
    window: int = 0,
    never: Sequence[int] = (),
    make_matrix: _MakeMatrix = _f16_matrix,
    file_type: LlamaFileType = LlamaFileType.MOSTLY_F16,
) -> Path:
    """Write a llama model with f16 matrices, f32 norms and tied embeddings; with a `window` one of
    cohere2, three of whose four layers have it. The weights do not depend on `vocab_size` but for
    the added rows of the embeddings, nor on `swap_tokens`, `chat_template` or `tokenizer`."""
    known: dict[str, Field] = {"tokenizer.ggml.model": ("none", GGUFValueType.STRING, None)}
    if tokenizer:
        known = vocabulary(size=vocab_size, swap=swap_tokens, chat_template=chat_template)
    own = sizes(dim, layers, ff, heads) | {"rope.dimension_count": dim // heads}
    own |= {"logit_scale": 1.0, "attention.layer_norm_epsilon": 1e-5}
    own |= {"attention.sliding_window": window or None}
    file = ModelFile(
        path,
        "cohere2" if window else "llama",
        known,
        own,
        name=f"llama-{dim}x{layers}",
        n_vocab=vocab_size,
        context=context,
        seed=seed,
        make_matrix=make_matrix,
        file_type=file_type,
    )
    file.keys["tokenizer.ggml.suppress_tokens"] = [*never] or None
    for i in range(layers):
        block = f"blk.{i}"
        file.norm(f"{block}.attn_norm")
        file.attention(block)
        if not window:
            file.norm(f"{block}.ffn_norm")
        file.feed_forward(block, ff)
    file.add("output_norm.weight", np.ones(dim, np.float16 if half_norm else np.float32))
    file.embeddings()
    if not more:
        return file.write()
    file.matrix("output", file.n_vocab, dim, LOGIT_STD)
    file.add("rope_freqs.weight", np.linspace(1, 4, dim // heads // 2, dtype=np.float32))
    biased = {"ffn_gate": ff, "ffn_up": ff, "ffn_down": dim}
    biased |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), dim)
    for i in range(layers):
        for name, width in biased.items():
            bias = file.rng.standard_normal(width, dtype=np.float32)
            file.add(f"blk.{i}.{name}.bias", bias)
    return file.write()


def aborting_llama(path: Path) -> Path:
    """Write a model that llama.cpp opens, and that makes it abort with the first token. Its last
    norm is in F16, which the processor's kernels do not multiply with (binary-ops.cpp); those of
    other devices do."""
    return tiny_llama(path, half_norm=True)


sized_llama = partial(
    tiny_llama,
    dim=1024,
    layers=12,
    heads=16,
    ff=2816,
    make_matrix=_q8_0_matrix,
    file_type=LlamaFileType.MOSTLY_Q8_0,
)
"""Writes one with Q8_0 matrices, so large that a pass takes 10 ms and more: 173 MB, in about 1 s;
the time of a pass goes with the size of the file (8 layers: 118 MB; 16: 228 MB)."""


def tiny_mamba(path: Path) -> Path:
    """Write a mamba model: recurrent memory only, which cannot be rolled back."""
    dim, layers, inner, state, conv, dt_rank = 64, 2, 128, 16, 4, 4
    file = ModelFile(
        path,
        "mamba",
        vocabulary(),
        {
            "embedding_length": dim,
            "block_count": layers,
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "ssm.conv_kernel": conv,
            "ssm.inner_size": inner,
            "ssm.state_size": state,
            "ssm.time_step_rank": dt_rank,
        },
    )
    decay = np.tile(-np.linspace(0.5, 4.0, state, dtype=np.float32), (inner, 1))
    ones = np.ones(inner, np.float32)
    for i in range(layers):
        block = f"blk.{i}"
        file.norm(f"{block}.attn_norm")
        file.matrix(f"{block}.ssm_in", 2 * inner, dim, 1.0)
        file.f32(f"{block}.ssm_conv1d", inner, conv)
        file.add(f"{block}.ssm_conv1d.bias", 0 * ones)
        file.matrix(f"{block}.ssm_x", dt_rank + 2 * state, inner, 2.0)
        file.matrix(f"{block}.ssm_dt", inner, dt_rank, 0.5)
        # Time steps of softplus(-1) = 0.3: the state forgets over 1 to 6 tokens.
        file.add(f"{block}.ssm_dt.bias", -ones)
        file.add(f"{block}.ssm_a", decay)
        file.add(f"{block}.ssm_d", ones)
        file.matrix(f"{block}.ssm_out", dim, inner, _DOWN_GAIN)
    file.norm("output_norm")
    file.embeddings()
    return file.write()


def tiny_hybrid(path: Path) -> Path:
    """Write an lfm2 model: 2 short convolutions around 1 attention layer, width 64. Its memory is
    part recurrent. llama.cpp can roll it back, but only within the last batch:
    `llama_memory_seq_rm` accepts to remove up to the context's `n_rs_seq` tokens, and the state is
    right only if the last batch had more tokens than are removed."""
    dim, heads, ff, conv = 64, 2, 128, 3
    kv_heads = [0, heads, 0]  # 0 makes a layer recurrent
    keys = sizes(dim, len(kv_heads), ff, heads)
    keys |= {"attention.head_count_kv": kv_heads, "shortconv.l_cache": conv}
    file = ModelFile(path, "lfm2", vocabulary(), keys, name="tiny-hybrid")
    for i, n_kv in enumerate(kv_heads):
        block = f"blk.{i}"
        file.norm(f"{block}.attn_norm")
        if n_kv:
            file.attention(block)
            file.norm(f"{block}.attn_q_norm", dim // heads)
            file.norm(f"{block}.attn_k_norm", dim // heads)
        else:
            in_proj = _f16_matrix(file.rng, 3 * dim, dim, 1.0)
            out_proj = _f16_matrix(file.rng, dim, dim, _DOWN_GAIN)
            file.f32(f"{block}.shortconv.conv", dim, conv)
            file.add(f"{block}.shortconv.in_proj.weight", in_proj)
            file.add(f"{block}.shortconv.out_proj.weight", out_proj)
        file.norm(f"{block}.ffn_norm")
        file.feed_forward(block, ff)
    file.norm("token_embd_norm")  # lfm2's name of the output norm
    file.embeddings()
    return file.write()


def tiny_bert(path: Path) -> Path:
    """Write a bert model: embeddings only, no memory, no logits, attention both ways. The
    vocabulary is the built-in model's (llama.cpp takes any for this architecture), so that it does
    not distinguish the file from others."""
    dim, layers, heads, ff, context, kinds = 64, 2, 2, 128, 512, 2
    token_types = {"tokenizer.ggml.token_type_count": (kinds, GGUFValueType.UINT32, None)}
    file = ModelFile(
        path,
        "bert",
        vocabulary(chat_template="") | token_types,
        {
            "embedding_length": dim,
            "block_count": layers,
            "feed_forward_length": ff,
            "attention.head_count": heads,
            "attention.layer_norm_epsilon": 1e-12,
            "attention.causal": False,
            "pooling_type": int(PoolingType.MEAN),
        },
        context=context,
    )
    file.f32("position_embd", context, dim)
    file.f32("token_types", kinds, dim)
    file.norm("token_embd_norm", bias=True)
    for i in range(layers):
        block = f"blk.{i}"
        file.attention(block)
        file.norm(f"{block}.attn_output_norm", bias=True)
        file.matrix(f"{block}.ffn_up", ff, dim, 1.0)
        file.matrix(f"{block}.ffn_down", dim, ff, _DOWN_GAIN)
        file.norm(f"{block}.layer_output_norm", bias=True)
    file.embeddings()
    return file.write()


def vocabulary(
    *,
    size: int | None = None,
    swap: tuple[int, int] | None = None,
    chat_template: str | None = None,
) -> dict[str, Field]:
    """The built-in model's tokenizer metadata, changed as `tiny_llama` describes."""
    known = dict(_embedded_vocabulary())
    tokens: list[str] = list(known[_TOKENS][0])
    types: list[int] = list(known[_TOKEN_TYPES][0])
    if size is not None:
        types += [int(TokenType.NORMAL)] * (size - len(tokens))
        tokens += [f"<pad-{i}>" for i in range(len(tokens), size)]
    if swap is not None:
        a, b = swap
        tokens[a], tokens[b] = tokens[b], tokens[a]
    known[_TOKENS] = (tokens, *known[_TOKENS][1:])
    known[_TOKEN_TYPES] = (types, *known[_TOKEN_TYPES][1:])
    if chat_template == "":
        known.pop(_CHAT_TEMPLATE, None)
    elif chat_template is not None:
        known[_CHAT_TEMPLATE] = (chat_template, GGUFValueType.STRING, None)
    return known


@cache
def _embedded_vocabulary() -> dict[str, Field]:
    return fields(paths.embedded(paths.EMBEDDED_DRAFT), "tokenizer")
