"""Files of trained heads with constructed weights.

An EAGLE-3 head of the built-in target without attention and feed-forward is a logit lens
(nostalgebraist 2020): the state passes through, and the output is the target's output for one
layer's input. With `follows` it predicts a known follower of each token: attention sees only its
own position, and adds the follower's direction.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from localspec import paths
from tests.support.gguf_files import Field, fields, gguf_file, sizes, within, write_gguf

LAYERS = (1, 3, 5)  # layers of the built-in target (it has six) whose inputs the heads read
FIRM = 40.0  # strength of followers relative to the state

_Matrix = npt.NDArray[np.float32]


def weights(path: Path) -> dict[str, _Matrix]:
    """All tensors of a model as floats."""
    return {
        t.name: t.data.astype(np.float32)
        if t.tensor_type == GGMLQuantizationType.I64
        else dequantize(t.data, t.tensor_type)
        for t in gguf_file(path).tensors
    }


def eagle(
    path: Path,
    target: Path | None = None,
    *,
    layers: Sequence[int] = LAYERS,
    lens: int = 2,
    follows: Mapping[int, int] | None = None,
    width: int | None = None,
    d2t: Sequence[int] | None = None,
    seed: int | None = None,
    **changed: Any,
) -> Path:
    target = target or paths.embedded(paths.EMBEDDED_TARGET)
    known = weights(target)
    embeddings = known["token_embd.weight"]
    size, n = embeddings.shape
    heads, wide = n // 64, width or n
    keys: dict[str, Any] = {
        **sizes(n, 1, 64, heads),
        "context_length": 2048,
        "rope.dimension_count": 64,
        "vocab_size": size,
        "target_hidden_size": wide,
        "target_layers": list(layers),
    } | changed

    def zeros(*shape: int) -> _Matrix:
        return np.zeros(shape, np.float32)

    fc = zeros(n, 3 * wide)
    np.fill_diagonal(fc[:, lens * wide :], 1.0)
    q, v, out = zeros(n, 2 * n), zeros(n, 2 * n), zeros(n, n)
    found: dict[str, npt.NDArray[Any]] = {}
    if follows is not None:
        own = zeros(size, n)
        # Feature 0 is 1 for each token: queries and keys consist of it, so that scores depend only
        # on the distance and are highest at 0.
        own[:, 0] = 1.0
        for token, next_token in follows.items():
            direction = embeddings[next_token].copy()
            direction[0] = 0.0
            own[token] += direction / np.linalg.norm(direction)
        q[:, 0] = 8.0
        v[:, 1:n] = np.eye(n, dtype=np.float32)[:, 1:]
        np.fill_diagonal(out, FIRM)
        found["token_embd.weight"] = own
    gate, down = zeros(64, n), zeros(n, 64)
    if seed is not None:
        random = np.random.default_rng(seed)
        for matrix in (fc, q, v, out, gate, down):
            scale = 1.0 / np.sqrt(matrix.shape[1])
            matrix[:] = scale * random.standard_normal(matrix.shape, np.float32)
    ones = np.ones(n, np.float32)
    found |= {
        "fc.weight": fc,
        "blk.0.attn_norm.weight": ones,
        "blk.0.attn_norm_2.weight": ones,
        "blk.0.ffn_norm.weight": ones,
        "output_norm.weight": known["output_norm.weight"],
        "blk.0.attn_q.weight": q,
        "blk.0.attn_k.weight": q,
        "blk.0.attn_v.weight": v,
        "blk.0.attn_output.weight": out,
        "blk.0.ffn_gate.weight": gate,
        "blk.0.ffn_up.weight": gate,
        "blk.0.ffn_down.weight": down,
    }
    if d2t is not None:
        found["d2t"] = np.array(d2t, np.int64)
        found["output.weight"] = embeddings[[i % size for i in d2t]]
    return write_gguf(path, "eagle3", within("eagle3", keys) | vocabulary_of(target), found)


def vocabulary_of(source: Path) -> dict[str, Field]:
    """All keys of the tokenizer but the chat template."""
    known = fields(source, "tokenizer")
    known.pop("tokenizer.chat_template", None)
    return known


def medusa(
    path: Path,
    target: Path | None = None,
    *,
    follows: Mapping[int, int] | None = None,
    heads: int = 3,
    cut: bool = True,
    **changed: Any,
) -> Path:
    """Write Medusa heads that predict known followers of the target's next token: the output row of
    a follower is the mean of the target's rows of the tokens before it."""
    target = target or paths.embedded(paths.EMBEDDED_TARGET)
    output = weights(target)["token_embd.weight"]
    size, width = output.shape
    pairs = dict(follows or {5: 6, 6: 5})
    ids = sorted(set(pairs.values()))
    keys: dict[str, Any] = {
        "embedding_length": width,
        "vocab_size": size,
        "head_count": heads,
        "block_count": 1,
    } | changed
    found: dict[str, npt.NDArray[Any]] = {}
    reached = {token: token for token in pairs}
    for head in range(heads):
        reached = {token: pairs.get(last, last) for token, last in reached.items()}
        rows = np.full((size, width), 0.0, np.float32)
        for follower in set(reached.values()):
            before = [token for token, then in reached.items() if then == follower]
            rows[follower] = output[before].mean(axis=0)
        found[f"medusa.{head}.blk.0.weight"] = np.zeros((width, width), np.float16)
        found[f"medusa.{head}.blk.0.bias"] = np.zeros(width, np.float32)
        found[f"medusa.{head}.output.weight"] = rows[ids] if cut else rows
    if cut:
        found["d2t"] = np.array(ids, np.int64)
    return write_gguf(path, "medusa", within("medusa", keys), found)
