"""Tiny models with an MTP layer of constructed weights, without attention and feed-forward.

As a lens it passes on the target's state of the position before, so that its row after a token is
the target's row for that token. With `follows` it predicts a known follower of each token.

There are two architectures with MTP layers in llama.cpp: glm4moe, which attends, and qwen35, some
of whose layers are recurrent.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support import ggufs
from tests.support.gguf_files import sizes

DIM, HEADS, FF, LAYERS = 64, 2, 128, 2
HEAD = DIM // HEADS
EXPERTS = 2

_Matrix = npt.NDArray[np.float32]


def glm(
    path: Path,
    *,
    follows: Mapping[int, int] | None = None,
    seed: int | None = None,
    trunk: bool = True,
    mtp: bool = True,
    count: int = 1,
    dim: int = DIM,
    layers: int = LAYERS,
    without: str = "",
    wide: int = 2,
    swap_tokens: tuple[int, int] | None = None,
) -> Path:
    """Write a glm4moe model of dense layers and an MTP layer with experts."""
    keys = {
        "expert_count": EXPERTS,
        "expert_used_count": 1,
        "expert_shared_count": 1,
        "expert_feed_forward_length": FF,
        "leading_dense_block_count": layers,
    }
    file = _File(path, "glm4moe", dim, layers, count, keys, without, swap_tokens, seed)
    if trunk:
        for layer in range(layers):
            file.attends(layer, dim)
            file.feed_forward(f"blk.{layer}", FF)
    if mtp:
        block = f"blk.{layers}"
        file.nextn(follows, wide, dim)
        file.known(f"{block}.ffn_gate_inp.weight", EXPERTS, dim)
        file.add(f"{block}.exp_probs_b.bias", np.zeros(EXPERTS, np.float32))
        for name, shape in (("gate", (FF, dim)), ("up", (FF, dim)), ("down", (dim, FF))):
            file.known(f"{block}.ffn_{name}_exps.weight", EXPERTS, *shape)
            file.known(f"{block}.ffn_{name}_shexp.weight", *shape)
    return file.write()


def qwen(path: Path, *, follows: Mapping[int, int] | None = None, seed: int | None = None) -> Path:
    """Write a qwen35 model: a linear-attention layer, one that attends, and an MTP layer."""
    state, value_heads = 16, 2
    keys = {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": state * value_heads,
        "ssm.state_size": state,
        "ssm.time_step_rank": value_heads,
        "ssm.group_count": 1,
        "full_attention_interval": 2,
        "rope.dimension_sections": [HEAD // 2, 0, 0, 0],
    }
    file = _File(path, "qwen35", DIM, LAYERS, 1, keys, seed=seed)
    inner = state * value_heads
    draw = file.draw
    mixed = 2 * state + inner
    for name, tensor in {
        "attn_norm.weight": np.ones(DIM, np.float32),
        "post_attention_norm.weight": np.ones(DIM, np.float32),
        "attn_qkv.weight": draw(mixed, DIM, 1.0),
        "attn_gate.weight": draw(inner, DIM, 1.0),
        "ssm_conv1d.weight": draw(mixed, 4, 1.0),
        "ssm_dt.bias": np.zeros(value_heads, np.float32),
        "ssm_a": np.full(value_heads, -0.5, np.float32),
        "ssm_beta.weight": draw(value_heads, DIM, 1.0),
        "ssm_alpha.weight": draw(value_heads, DIM, 1.0),
        "ssm_norm.weight": np.ones(state, np.float32),
        "ssm_out.weight": draw(DIM, inner, 2.0),
    }.items():
        file.add(f"blk.0.{name}", tensor)
    file.feed_forward("blk.0", FF)
    file.attends(1, 2 * DIM, normed=True)
    file.feed_forward("blk.1", FF)
    file.nextn(follows, 2, 2 * DIM, normed=True)
    for name, shape in (("gate", (FF, DIM)), ("up", (FF, DIM)), ("down", (DIM, FF))):
        file.known(f"blk.{LAYERS}.ffn_{name}.weight", *shape)
    return file.write()


MAKERS: Mapping[str, Callable[..., Path]] = {"glm4moe": glm, "qwen35": qwen}


class _File(ggufs.ModelFile):
    def __init__(
        self,
        path: Path,
        architecture: str,
        dim: int,
        layers: int,
        count: int,
        keys: Mapping[str, Any],
        without: str = "",
        swap: tuple[int, int] | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            path,
            architecture,
            ggufs.vocabulary(swap=swap),
            {
                **sizes(dim, layers + count, FF, HEADS),
                "attention.key_length": dim // HEADS,
                "attention.value_length": dim // HEADS,
                "rope.dimension_count": dim // HEADS,
                "nextn_predict_layers": count,
                **keys,
            },
        )
        self._ahead = None if seed is None else np.random.default_rng(seed)
        self.layers, self.without = layers, without
        self.rows = self.draw(self.n_vocab, dim, ggufs.LOGIT_STD)
        self.add("token_embd.weight", self.rows)
        self.norm("output_norm")

    def draw(self, rows: int, columns: int, gain: float) -> _Matrix:
        """A random matrix. Layers before the MTP layer do not depend on it."""
        return ggufs.f32_matrix(self.rng, rows, columns, gain)

    def add(self, name: str, tensor: npt.NDArray[Any]) -> None:
        if name != self.without:
            kept = tensor.ndim == 1 or "conv1d" in name
            super().add(name, tensor if kept else tensor.astype(np.float16))

    def known(self, name: str, *shape: int) -> None:
        """A matrix of the MTP layer: zero, or random."""
        weights = np.zeros(shape, np.float32)
        if self._ahead is not None:
            weights += self._ahead.standard_normal(shape, np.float32) / np.sqrt(shape[-1])
        self.add(name, weights)

    def attends(self, layer: int, query: int, *, normed: bool = False) -> None:
        """An attention layer, with `query` numbers of queries per token."""
        self._norms(f"blk.{layer}", normed)
        self.attention(f"blk.{layer}", query)

    def nextn(
        self, follows: Mapping[int, int] | None, wide: int, query: int, *, normed: bool = False
    ) -> None:
        """The MTP layer without its feed-forward, which has to be zero."""
        block, dim = f"blk.{self.layers}", self.dim
        self._norms(block, normed)
        for name, rows in (("attn_q", query), ("attn_k", dim), ("attn_v", dim)):
            self.known(f"{block}.{name}.weight", rows, dim)
        self.known(f"{block}.attn_output.weight", dim, dim)
        joined = np.zeros((dim, wide * dim), np.float32)
        if follows is None:
            joined[:, dim : 2 * dim] = np.eye(dim)
        else:
            joined[:, :dim] = np.eye(dim)
            own = np.zeros_like(self.rows)
            for token, follower in follows.items():
                own[token] = self.rows[follower]
            self.add(f"{block}.nextn.embed_tokens.weight", own)
        self.add(f"{block}.nextn.eh_proj.weight", joined)
        for name in ("enorm", "hnorm"):
            self.norm(f"{block}.nextn.{name}")

    def _norms(self, block: str, normed: bool) -> None:
        for name in ("attn_norm", "post_attention_norm"):
            self.norm(f"{block}.{name}")
        if normed:
            for name in ("attn_q_norm", "attn_k_norm"):
                self.norm(f"{block}.{name}", self.dim // HEADS)
