"""GGUF files, read and written with the package gguf."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter


class _Reader(GGUFReader):  # type: ignore[misc]
    """On a plain array: each look at a memmap runs Python code."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)


def gguf_file(path: Path) -> GGUFReader:
    """The content of a file, cached until it changes, as reading 8,192 tokens takes half a second.
    Do not modify it."""
    stamp = path.stat()
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(8)
def _read(path: Path, changed: int, size: int) -> GGUFReader:
    return _Reader(path)


Field = tuple[Any, GGUFValueType, GGUFValueType | None]
"""A metadata entry, its type, and that of its elements where it is an array."""
Matrix = npt.NDArray[Any]


def fields(path: Path, section: str) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for name, field in gguf_file(path).fields.items():
        if name.startswith(f"{section}."):
            item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            found[name] = (field.contents(), field.types[0], item)
    return found


def within(section: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in keys.items()}


def sizes(width: int, layers: int, feed_forward: int, heads: int) -> dict[str, Any]:
    """Metadata of a transformer, for the section of its architecture."""
    return {
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": feed_forward,
        "attention.head_count": heads,
        "attention.head_count_kv": heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }


def write_gguf(
    path: Path, architecture: str, keys: Mapping[str, Any], tensors: Mapping[str, Matrix]
) -> Path:
    """Write a file. Keys have the types of their values, or those of a `Field`, and are left out
    where they are None; bytes of a tensor are taken as Q8_0."""
    writer = GGUFWriter(path, architecture)
    adds = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
    adds |= {list: writer.add_array, str: writer.add_string}
    for name, value in keys.items():
        if isinstance(value, tuple):
            writer.add_key_value(name, *value)
        elif value is not None:
            adds[type(value)](name, value)
    for name, tensor in tensors.items():
        kind = GGMLQuantizationType.Q8_0 if tensor.dtype == np.uint8 else None
        writer.add_tensor(name, np.ascontiguousarray(tensor), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
