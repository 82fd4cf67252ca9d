"""Writes a trained head in the shape of its scaled target: zeros go where the target's have gone.

Layouts: dev/heads.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.bench.scaled_gguf import gguf_package
from localspec.errors import LocalspecError, ModelInvalid
from localspec.gguf.file import GGUFFile
from localspec.gguf.heads import EAGLE3, MEDUSA
from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import NewTensor, write_gguf

_Values = npt.NDArray[np.float32]
_WIDTH, _HEADS, _KV_HEADS = "embedding_length", "attention.head_count", "attention.head_count_kv"
_FEED_FORWARD, _EPSILON = "feed_forward_length", "attention.layer_norm_rms_epsilon"


@dataclass(frozen=True, slots=True)
class _Part:
    """What becomes of a tensor.

    Attributes:
        rows: of the new one; 0 for a vector.
        width: of each of the `blocks` side by side in a row.
    """

    rows: int
    width: int
    blocks: int = 1
    scale: float = 1.0

    def of(self, values: _Values) -> _Values:
        rows = max(1, self.rows)
        old = values.reshape(values.shape[0] if self.rows else 1, self.blocks, -1)
        made = np.zeros((rows, self.blocks, self.width), np.float32)
        made[: old.shape[0], :, : old.shape[2]] = old * np.float32(self.scale)
        return made.reshape((rows, -1) if self.rows else -1)


def is_scalable(path: Path) -> bool:
    """Whether a file is a head that can be written in another shape; errors as `read_gguf`."""
    return read_gguf(path, tensors=False).architecture in _PARTS


def write_head(source: Path, destination: Path, target: Path) -> None:
    """Write a head for `target`, a scaled model of its own target.

    Raises:
        ModelInvalid: no head of EAGLE-3 or Medusa, or of another target.
        UsageError: gguf is not installed.
        LocalspecError: the disk refuses.
    """
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
    for tensor in gguf_package().GGUFReader(source).tensors:
        part, kind = part_of(tensor.name), tensor.tensor_type
        if part is None:
            raise ModelInvalid(f"{source} has a tensor {tensor.name}, which cannot be scaled.")
        quants = gguf_package().quants
        values = part.of(np.asarray(quants.dequantize(tensor.data, kind), np.float32))
        data = quants.quantize(values, kind).tobytes()
        tensors.append(NewTensor(tensor.name, values.shape[::-1], kind.name, data))
    metadata = {**head.metadata, **changed}
    try:
        write_gguf(destination, metadata, head.kinds, tensors)
    except OSError as error:
        raise LocalspecError(
            f"{destination} could not be written: {error.strerror or error}. Free some space, or "
            "set LOCALSPEC_HOME to a folder that has it."
        ) from error


_Shaped = tuple[dict[str, Any], Callable[[str], _Part | None]]
"""Metadata that change, and what becomes of a tensor of that name."""


def _eagle(head: GGUFFile, target: GGUFFile, width: int, new: int) -> _Shaped:
    there = {key: target.own_integer(key) or 0 for key in (_HEADS, _KV_HEADS, _FEED_FORWARD)}
    head_width = width // (head.own_integer(_HEADS) or 1)
    queries, keys = there[_HEADS] * head_width, there[_KV_HEADS] * head_width
    neurons = there[_FEED_FORWARD]
    # As for the target: zeros make the mean square smaller by this factor.
    norm = _Part(0, new, scale=math.sqrt(width / new))
    parts = {
        "fc.weight": _Part(new, new, 3),
        "output_norm.weight": norm,
        "blk.0.attn_norm_2.weight": norm,
        "blk.0.attn_norm.weight": norm,
        "blk.0.ffn_norm.weight": norm,
        # Behind each other: of the token, and of the state.
        "blk.0.attn_q.weight": _Part(queries, new, 2),
        "blk.0.attn_k.weight": _Part(keys, new, 2),
        "blk.0.attn_v.weight": _Part(keys, new, 2),
        "blk.0.attn_output.weight": _Part(new, queries),
        "blk.0.ffn_gate.weight": _Part(neurons, new),
        "blk.0.ffn_up.weight": _Part(neurons, new),
        "blk.0.ffn_down.weight": _Part(new, neurons),
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

    def part(name: str) -> _Part | None:
        if name in rows:
            return _Part(rows[name], new)
        if name.endswith(".bias"):
            return _Part(0, new)
        return _Part(new, new) if ".blk." in name else None

    return {f"{MEDUSA}.{_WIDTH}": new}, part


_PARTS: dict[str, Callable[[GGUFFile, GGUFFile, int, int], _Shaped]] = {
    EAGLE3: _eagle,
    MEDUSA: _medusa,
}
