"""What a model would weigh in other quantizations, and small files that cost what it would cost.

Which type each tensor gets is asked of llama.cpp's own quantizer, over a model of the same names,
layers and row lengths whose matrices have two rows: that takes a tenth of a second, and gives the
size of the whole file to the byte. What a pass costs is measured on a file of a few layers in those
types; its weights are holes, for no kernel looks at their values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from localspec.gguf.description import quantization
from localspec.gguf.file import Array, GGUFFile, TensorInfo, Value
from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import NewTensor, write_gguf
from localspec.llama.quantize import quantize

QUANTS = ("Q4_0", "IQ4_NL", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")
"""Those that nearly every repository has, and that need no statistics of the model."""
_ROWS = 128
"""Of the embeddings that differ, where experts are to be chosen; more than a pass reads."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class WeightTypes:
    """One quantization of a model.

    Attributes:
        quant: its name, "Q4_K_M" …
        types: of each tensor, by name.
        size: bytes of the file, metadata included.
        own: whether it is that of the file at hand.
    """

    quant: str
    types: Mapping[str, str]
    size: int
    own: bool = False


def own_types(file: GGUFFile) -> WeightTypes:
    """The file as it is, whatever made its mix."""
    types = {tensor.name: tensor.type for tensor in file.tensors}
    return WeightTypes(quantization(file), types, file.size, own=True)


def types_in(file: GGUFFile, quant: str, folder: Path) -> WeightTypes:
    """The types that llama.cpp's quantizer would give this model.

    Args:
        folder: for two files of a few megabytes, which are removed.

    Raises:
        NativeError: it refuses.
        OSError: no room.
    """
    thin, quantized = folder / "thin.gguf", folder / "thin-quantized.gguf"
    try:
        write_gguf(thin, file.metadata, file.kinds, [_thin(tensor) for tensor in file.tensors])
        quantize(thin, quantized, quant)
        types = {tensor.name: tensor.type for tensor in read_gguf(quantized).tensors}
    finally:
        thin.unlink(missing_ok=True)
        quantized.unlink(missing_ok=True)
    weights = sum(NewTensor(t.name, t.shape, types[t.name]).size for t in file.tensors)
    return WeightTypes(quant, types, file.size - file.weight_bytes + weights)


def _thin(tensor: TensorInfo) -> NewTensor:
    """Two rows of it, where it is a matrix."""
    shape = tensor.shape
    if len(shape) > 1:
        shape = (shape[0], min(2, shape[1]), *shape[2:])
    kept = len(shape) == 1 or tensor.type == "F32"
    return NewTensor(tensor.name, shape, "F32" if kept else "F16")


def why_not_cut(file: GGUFFile) -> str | None:
    """Why no part of a model can stand for the whole; half a sentence, None if one can."""
    shapes: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for tensor in file.tensors:
        layer, name = _place(tensor.name)
        if layer is not None:
            shapes.setdefault(layer, set()).add((name, tensor.shape))
    if sorted(shapes) != list(range(file.own_integer("block_count") or 0)) or not shapes:
        return "its layers are not those that it counts"
    if any(shape != shapes[0] for shape in shapes.values()):
        return "its layers differ"
    if _experts(file) and _tied(file):
        return "its experts cannot be chosen without its embeddings"
    return None


def layer_bytes(file: GGUFFile, types: WeightTypes, layers: Sequence[int] | None = None) -> int:
    """Of these layers, None for all."""
    wanted = None if layers is None else set(layers)
    return sum(
        NewTensor(tensor.name, tensor.shape, types.types[tensor.name]).size
        for tensor in file.tensors
        for layer in [_place(tensor.name)[0]]
        if layer is not None and (wanted is None or layer in wanted)
    )


def sample(file: GGUFFile, types: WeightTypes, count: int) -> list[int]:
    """So many layers whose types are as mixed as those of all."""
    mixes: dict[int, list[tuple[str, str]]] = {}
    for name, kind in types.types.items():
        layer, rest = _place(name)
        if layer is not None:
            mixes.setdefault(layer, []).append((rest, kind))
    order = sorted(mixes, key=lambda layer: (sorted(mixes[layer]), layer))
    step = len(order) / count
    return sorted(order[int((number + 0.5) * step)] for number in range(count))


def write_part(path: Path, file: GGUFFile, types: WeightTypes, layers: Sequence[int]) -> None:
    """Write the model with these layers alone.

    Weights are holes. Norms are ones, and where there are experts, embeddings and routers are
    drawn by lot, so that tokens choose different ones.

    Raises:
        OSError: no room, no permission …
    """
    numbers = {layer: number for number, layer in enumerate(layers)}
    spread = _experts(file)
    tensors = []
    for tensor in file.tensors:
        layer, rest = _place(tensor.name)
        if layer is not None and layer not in numbers:
            continue
        name = tensor.name if layer is None else f"blk.{numbers[layer]}.{rest}"
        kind, data = types.types[tensor.name], b""
        if kind == "F32" and len(tensor.shape) == 1:
            data = np.ones(tensor.shape, np.float32).tobytes()
        elif spread and rest == "ffn_gate_inp.weight" and kind == "F32":
            data = _drawn(tensor.elements, np.float32)
        elif spread and name == "token_embd.weight":
            kind = "F16"  # a pass reads some rows of it only
            data = _drawn(tensor.shape[0] * min(_ROWS, tensor.shape[1]), np.float16)
        tensors.append(NewTensor(name, tensor.shape, kind, data))
    write_gguf(path, _metadata(file, layers), file.kinds, tensors)


def part_bytes(file: GGUFFile, types: WeightTypes, layers: Sequence[int]) -> int:
    """Bytes of what `write_part` writes, holes included, but for its metadata."""
    rest = sum(
        NewTensor(tensor.name, tensor.shape, types.types[tensor.name]).size
        for tensor in file.tensors
        if _place(tensor.name)[0] is None
    )
    return rest + layer_bytes(file, types, layers)


def _metadata(file: GGUFFile, layers: Sequence[int]) -> dict[str, Value]:
    """The file's own, for so many layers."""
    prefix, count = f"{file.architecture}.", file.own_integer("block_count") or 0
    found = dict(file.metadata)
    found[f"{prefix}block_count"] = len(layers)
    for key, value in file.metadata.items():
        by_layer = isinstance(value, Array) and not value.strings and len(value) == count
        if isinstance(value, Array) and by_layer and key.startswith(prefix):
            size = len(value.raw) // count
            raw = b"".join(value.raw[n * size : (n + 1) * size] for n in layers)
            found[key] = Array(raw, value.kind, len(layers))
    return found


def _drawn(count: int, kind: type[np.float16] | type[np.float32]) -> bytes:
    numbers = np.random.default_rng(0).standard_normal(count, dtype=np.float32)
    return numbers.astype(kind).tobytes()


def _place(name: str) -> tuple[int | None, str]:
    """A tensor's layer, None outside of all, and its name in there."""
    found = _BLOCK.fullmatch(name)
    return (None, name) if found is None else (int(found[1]), found[2])


def _experts(file: GGUFFile) -> bool:
    return bool(file.own_integer("expert_count"))


def _tied(file: GGUFFile) -> bool:
    return not any(tensor.name == "output.weight" for tensor in file.tensors)
