"""Writes a llama model without some of its layers: cheaper as a draft, and right less often."""

from __future__ import annotations

from pathlib import Path

from localspec.bench.scaled_gguf import LlamaFile
from localspec.errors import UsageError


def middle_layers(layers: int, count: int) -> range:
    """Which ones are left out: the first and the last layers matter most.

    Raises:
        UsageError: not even one layer at either end would be left.
    """
    if not 1 <= count <= layers - 2:
        raise UsageError(
            f"Of {layers} layers, {count} cannot be left out. Leave out 1 to {layers - 2}."
            if layers > 2
            else f"A model of {layers} layers has no middle ones to leave out."
        )
    first = (layers - count) // 2
    return range(first, first + count)


def write_without_layers(path: Path, destination: Path, name: str, count: int) -> None:
    """Write the model at `path` without its `count` middle layers, quantized as it is.

    See `localspec.bench.scale.drop_layers`.
    """
    source = LlamaFile(path)
    layers = source.number("block_count")
    left_out = middle_layers(layers, count)
    changed = {"general.name": name, "llama.block_count": layers - count}
    writer = source.writer(destination, changed, leave=())
    try:
        for tensor in source.tensors.values():
            kind, _, rest = tensor.name.partition(".")
            number, _, part = rest.partition(".")
            if kind == "blk" and int(number) in left_out:
                continue
            moved = kind == "blk" and int(number) >= left_out.stop
            known = f"blk.{int(number) - count}.{part}" if moved else tensor.name
            writer.add_tensor(known, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
