"""Writes a trained head in the shape of its scaled target: zeros go where the target's have gone.

Layouts: dev/heads.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from localspec.bench.scaled_gguf import Padded, dequantized, gguf_package
from localspec.errors import ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.gguf.heads import EAGLE3, MEDUSA
from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import NewTensor, write_gguf

_WIDTH, _HEADS, _KV_HEADS = "embedding_length", "attention.head_count", "attention.head_count_kv"
_FEED_FORWARD, _EPSILON = "feed_forward_length", "attention.layer_norm_rms_epsilon"


def is_scalable(path: Path) -> bool:
    """Whether a file is a head that can be written in another shape; errors as `read_gguf`."""
    return read_gguf(path, tensors=False).architecture in _PARTS


def write_head(source: Path, destination: Path, target: Path) -> None:
    """Write a head for `target`, a scaled model of its own target. Raises LocalspecError, and
    OSError where the disk refuses."""
    head, scaled = read_gguf(source), read_gguf(target)
    parts = _PARTS.get(head.architecture)
    if parts is None:
        raise ModelInvalid(
            f"{source} has the architecture {head.architecture}. Heads of EAGLE-3 and Medusa can "
            "be scaled, models with --scale-to."
        )
    width, new = head.own_integer(_WIDTH), scaled.own_integer(_WIDTH)
    if not width or not new or new < width:
        raise ModelInvalid(f"{source} is {width} wide, and {target.name} {new}: less.")
    changed, part_of = parts(head, scaled, width, new)
    tensors = []
    gguf = gguf_package()
    for tensor in head.tensors:
        part = part_of(tensor.name)
        if part is None:
            raise ModelInvalid(f"{source} has a tensor {tensor.name}, which cannot be scaled.")
        values = part.of(dequantized(head, tensor), np.float32)
        data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[tensor.type]).tobytes()
        tensors.append(NewTensor(tensor.name, values.shape[::-1], tensor.type, data))
    metadata = {**head.metadata, **changed}
    write_gguf(destination, metadata, head.kinds, tensors)


_Shaped = tuple[dict[str, Any], Callable[[str], Padded | None]]
"""Metadata that change, and what becomes of a tensor of that name."""


def _eagle(head: GGUFFile, target: GGUFFile, width: int, new: int) -> _Shaped:
    there = {key: target.own_integer(key) or 0 for key in (_HEADS, _KV_HEADS, _FEED_FORWARD)}
    head_width = width // (head.own_integer(_HEADS) or 1)
    queries, keys = there[_HEADS] * head_width, there[_KV_HEADS] * head_width
    neurons = there[_FEED_FORWARD]
    # As for the target: zeros make the mean square smaller by this factor.
    norm = Padded((new,), math.sqrt(width / new))
    parts = {
        "fc.weight": Padded((new, 3 * new), blocks=3),
        "output_norm.weight": norm,
        "blk.0.attn_norm_2.weight": norm,
        "blk.0.attn_norm.weight": norm,
        "blk.0.ffn_norm.weight": norm,
        # Behind each other: of the token, and of the state.
        "blk.0.attn_q.weight": Padded((queries, 2 * new), blocks=2),
        "blk.0.attn_k.weight": Padded((keys, 2 * new), blocks=2),
        "blk.0.attn_v.weight": Padded((keys, 2 * new), blocks=2),
        "blk.0.attn_output.weight": Padded((new, queries)),
        "blk.0.ffn_gate.weight": Padded((neurons, new)),
        "blk.0.ffn_up.weight": Padded((neurons, new)),
        "blk.0.ffn_down.weight": Padded((new, neurons)),
    }
    epsilon = head.metadata[f"{EAGLE3}.{_EPSILON}"]
    assert isinstance(epsilon, float)
    changed: dict[str, Any] = {f"{EAGLE3}.{key}": value for key, value in there.items()}
    changed |= {
        f"{EAGLE3}.{_WIDTH}": new,
        f"{EAGLE3}.target_hidden_size": new,
        f"{EAGLE3}.{_EPSILON}": epsilon * width / new,
    }
    return changed, parts.get


def _medusa(head: GGUFFile, target: GGUFFile, width: int, new: int) -> _Shaped:
    rows = {t.name: t.shape[-1] for t in head.tensors if t.name.endswith("output.weight")}

    def part(name: str) -> Padded | None:
        if name in rows:
            return Padded((rows[name], new))
        if name.endswith(".bias"):
            return Padded((new,))
        return Padded((new, new)) if ".blk." in name else None

    return {f"{MEDUSA}.{_WIDTH}": new}, part


_PARTS: dict[str, Callable[[GGUFFile, GGUFFile, int, int], _Shaped]] = {
    EAGLE3: _eagle,
    MEDUSA: _medusa,
}
