"""Files of DFlash and DSpark heads with constructed weights.

With `follows` a DFlash head predicts a known follower of each token. In every layer a mask attends
to the position before, and adds the follower of the token there: the first mask has the follower of
the text's last token after one layer, the second mask that of the first after two. The layers of a
DSpark head do nothing, and its Markov chain has the followers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec import paths
from tests.support.gguf_files import sizes, within, write_gguf
from tests.support.heads import LAYERS, vocabulary_of, weights

_Matrix = npt.NDArray[np.float32]

MASK = 259  # the mask token; any that no text contains
SHARP = 8.0  # of queries and keys
LONG = 30.0
"""Of embeddings, as large as what layers add, so that the sum for the text's last token, which
attends to no particular position, changes little."""
FIRM = 3.0  # strength of the followers that a layer adds
SURE = 30.0  # logit of a follower in the Markov chain
_FLAG, _ALL = 0, 1  # features of masks, and of all tokens


def block(
    path: Path,
    target: Path | None = None,
    *,
    markov: bool = False,
    anchored: bool | None = None,
    layers: Sequence[int] = LAYERS,
    depth: int = 3,
    follows: Mapping[int, int] | None = None,
    d2t: Sequence[int] | None = None,
    seed: int | None = None,
    size: int | None = 5,
    mask: int | None = MASK,
    confidence: bool = False,
    sections: bool = False,
    causal: bool | None = None,
    without: str = "",
    **changed: Any,
) -> Path:
    target = target or paths.embedded(paths.EMBEDDED_TARGET)
    known = weights(target)
    embeddings = known["token_embd.weight"]
    tokens, n = embeddings.shape
    dim = min(64, n // 2)
    heads = n // dim
    keys: dict[str, Any] = {
        **sizes(n, depth, 64, heads),
        "context_length": 2048,
        "rope.dimension_count": dim,
        "vocab_size": tokens,
        "block_size": size,
        "sample_from_anchor": anchored,
        "attention.causal": causal,
        "target_layers": list(layers),
        "rope.dimension_sections": [dim // 2, 0, 0, 0] if sections else None,
    } | changed

    random = None if seed is None else np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> _Matrix:
        if random is None:
            return np.zeros((rows, columns), np.float32)
        found = random.standard_normal((rows, columns), np.float32)
        found /= np.sqrt(columns)
        return found

    ones, norm = np.ones(n, np.float32), known["output_norm.weight"].copy()
    found: dict[str, npt.NDArray[Any]] = {
        "fc.weight": matrix(n, len(layers) * n),
        "enc.output_norm.weight": ones,
    }
    knows = follows is not None and not markov
    if knows:
        assert follows is not None
        found["token_embd.weight"] = _flagged(embeddings, MASK if mask is None else mask)
        norm[[_FLAG, _ALL]] = 0.0
    for layer in range(depth):
        q, k, v, out = (matrix(n, n) for _ in range(4))
        sharp = 1.0
        if knows:
            assert follows is not None
            q, k = _neighbours(n, dim)
            v, sharp = _followers(found["token_embd.weight"], follows), SHARP
            np.fill_diagonal(out, FIRM)
        found |= {
            f"blk.{layer}.attn_norm.weight": ones,
            f"blk.{layer}.ffn_norm.weight": ones,
            f"blk.{layer}.attn_q.weight": q,
            f"blk.{layer}.attn_k.weight": k,
            f"blk.{layer}.attn_v.weight": v,
            f"blk.{layer}.attn_output.weight": out,
            f"blk.{layer}.attn_q_norm.weight": np.full(dim, sharp, np.float32),
            f"blk.{layer}.attn_k_norm.weight": np.full(dim, sharp, np.float32),
            f"blk.{layer}.ffn_gate.weight": matrix(64, n),
            f"blk.{layer}.ffn_up.weight": matrix(64, n),
            f"blk.{layer}.ffn_down.weight": matrix(n, 64),
        }
    output_ids = range(tokens) if d2t is None else [i % tokens for i in d2t]
    if knows or d2t is not None:
        found["output.weight"] = np.ascontiguousarray(embeddings[output_ids])
    if d2t is not None:
        found["d2t"] = np.array(d2t, np.int64)
    if markov:
        first = 0.1 * embeddings if random is not None else _directions(embeddings)
        second = (
            embeddings[output_ids]
            if random is not None
            else np.zeros((len(output_ids), n), np.float32)
        )
        if follows is not None:
            second = (SURE * first[output_ids] @ _followers(first, follows)).astype(np.float32)
            norm[:] = 0.0
        found["markov_w1.weight"] = first.astype(np.float32)
        found["markov_w2.weight"] = np.ascontiguousarray(second, np.float32)
        if confidence:
            found["conf_proj.weight"] = matrix(1, 2 * n)
            found["conf_proj.bias"] = np.zeros(1, np.float32)
    found["output_norm.weight"] = norm
    found.pop(without, None)
    vocabulary = {**vocabulary_of(target), "tokenizer.ggml.mask_token_id": mask}
    return write_gguf(path, "dflash", within("dflash", keys) | vocabulary, found)


def _directions(embeddings: _Matrix) -> _Matrix:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    found: _Matrix = embeddings / np.maximum(lengths, 1e-6)
    return found


def _flagged(embeddings: _Matrix, mask: int) -> _Matrix:
    """Directions of all tokens but the mask, with features that distinguish the mask."""
    found = embeddings.copy()
    found[:, [_FLAG, _ALL]] = 0.0
    found = _directions(found)
    found[mask] = 0.0
    found[:, _ALL] = 0.5
    found[mask, _FLAG] = 0.5
    found *= LONG
    return found


def _followers(embeddings: _Matrix, follows: Mapping[int, int]) -> _Matrix:
    """A matrix [n, n] from each token's direction to that of its follower, and from flags to 0."""
    n = embeddings.shape[1]
    if np.ptp(embeddings[:, _ALL]):  # without flags
        before, after = embeddings[list(follows)], embeddings[list(follows.values())]
    else:
        flags = np.eye(n, dtype=np.float32)[[_FLAG, _ALL]]
        before = np.concatenate([embeddings[list(follows)], flags])
        after = np.concatenate([embeddings[list(follows.values())], 0 * flags])
        after[:, [_FLAG, _ALL]] = 0.0
    found = np.linalg.lstsq(before.astype(np.float64), after.astype(np.float64), rcond=1e-6)[0]
    return np.ascontiguousarray(found.T, np.float32)


def _neighbours(n: int, dim: int) -> tuple[_Matrix, _Matrix]:
    """Queries of masks and keys of tokens whose product is largest at the position before."""
    half = dim // 2
    turn = 10000.0 ** (-np.arange(half) / half)
    q, k = np.zeros((n // dim, dim, n), np.float32), np.zeros((n // dim, dim, n), np.float32)
    q[:, :half, _FLAG] = 1.0
    k[:, :half, _ALL], k[:, half:, _ALL] = np.cos(turn), np.sin(turn)
    return q.reshape(n, n), k.reshape(n, n)
