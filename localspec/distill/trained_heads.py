"""Heads on a target's hidden states: initial weights and files (dev/heads.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import Shape
from localspec.distill import weights
from localspec.distill.weights import F32, Fact, Trained, Weights
from localspec.gguf.file import ARRAY, I32, STRING, U32, Array, GGUFFile
from localspec.gguf.writer import NewTensor

Ids = npt.NDArray[np.int64]

HEADS = 4
OWN = ("attn_q", "attn_k", "attn_v")


def target_layers(layers: int) -> tuple[int, int, int]:
    """Whose inputs an EAGLE-3 head reads: early, in the middle, late."""
    if layers >= 8:
        return 2, layers // 2, layers - 3
    return min(1, layers - 1), layers // 2, layers - 1


def initial_medusa(
    target: Weights, shape: Shape, kept: Ids | None = None, heads: int = HEADS
) -> Weights:
    """Heads that repeat the target's token: blocks of zeros (Cai et al. 2024, section 2.1.1).
    `kept`: the target's tokens that they can say, None for all."""
    width = shape.width
    made: Weights = {"medusa.output.weight": _output(target, shape, kept)}
    for head in range(heads):
        made[f"medusa.{head}.blk.0.weight"] = np.zeros((width, width), np.float32)
        made[f"medusa.{head}.blk.0.bias"] = np.zeros(width, np.float32)
    return made


def initial_eagle(target: Weights, shape: Shape, seed: int, kept: Ids | None = None) -> Weights:
    """The target's last layer on the last of the three states; the embedding has little weight.
    `kept`: the target's tokens that it can say; None for all, with the target's output matrix."""
    random = np.random.Generator(np.random.PCG64(seed))
    width, last = shape.width, f"blk.{shape.layers - 1}"
    zeros = np.zeros((width, width), np.float32)
    made: Weights = {
        "fc.weight": np.concatenate([zeros, zeros, np.eye(width, dtype=np.float32)], 1),
        "output_norm.weight": target["output_norm.weight"].copy(),
        "blk.0.attn_norm_2.weight": target[f"{last}.attn_norm.weight"].copy(),
        "blk.0.attn_norm.weight": np.ones(width, np.float32),
        "blk.0.ffn_norm.weight": target[f"{last}.ffn_norm.weight"].copy(),
    }
    for name in OWN:
        values = target[f"{last}.{name}.weight"]
        beside = random.standard_normal(values.shape) * (0.1 * values.std())
        made[f"blk.0.{name}.weight"] = np.concatenate([beside.astype(np.float32), values], 1)
    for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        made[f"blk.0.{name}.weight"] = target[f"{last}.{name}.weight"].copy()
    if kept is not None:
        made["output.weight"] = _output(target, shape, kept)
    return made


def _output(target: Weights, shape: Shape, kept: Ids | None) -> npt.NDArray[np.float32]:
    matrix = target["token_embd.weight" if shape.tied else "output.weight"]
    return matrix.copy() if kept is None else matrix[kept]


def write_medusa(
    path: Path,
    made: Mapping[str, npt.NDArray[np.float32]],
    shape: Shape,
    trained: Trained,
    vocabulary: str,
    kept: Ids | None = None,
) -> None:
    """A file of Medusa heads; `vocabulary` is the target's fingerprint."""
    heads = sum(name.endswith(".blk.0.weight") for name in made)
    own: list[Fact] = [
        ("general.architecture", STRING, "medusa"),
        *weights.trained_facts(trained),
        ("medusa.embedding_length", U32, shape.width),
        ("medusa.vocab_size", U32, shape.vocabulary),
        ("medusa.head_count", U32, heads),
        ("medusa.block_count", U32, 1),
        ("medusa.target_vocabulary", STRING, vocabulary),
    ]
    kinds = {name: weights.F16 if made[name].ndim > 1 else F32 for name in made}
    facts = [*own, *weights.quantized_as(weights.F16)]
    weights.write_file(path, facts, made, kinds, _map(kept))


def write_eagle(
    path: Path,
    made: Mapping[str, npt.NDArray[np.float32]],
    shape: Shape,
    layers: tuple[int, ...],
    target: GGUFFile,
    trained: Trained,
    kind: str = weights.Q8_0,
    kept: Ids | None = None,
) -> None:
    """A file of an EAGLE-3 head; `shape` and embeddings are the target's, without `kept` the output
    matrix too."""
    own = [
        *weights.shape_facts("eagle3", replace(shape, layers=1)),
        *weights.trained_facts(trained),
        ("eagle3.target_layers", ARRAY, Array(struct.pack("<3i", *layers), I32, 3)),
        ("eagle3.target_hidden_size", U32, shape.width),
    ]
    own += [*weights.quantized_as(kind), *weights.tokenizer_of(target)]
    kinds = {name: kind if made[name].ndim > 1 else F32 for name in made}
    weights.write_file(path, own, made, kinds, _map(kept))


def _map(kept: Ids | None) -> list[NewTensor]:
    """The target's id of each row of the output matrix."""
    return (
        [] if kept is None else [NewTensor("d2t", kept.shape, "I64", kept.astype("<i8").tobytes())]
    )
