"""GGUF files as the package gguf reads them, half a second where there are 8,192 tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter


class _Reader(GGUFReader):  # type: ignore[misc]
    """On a plain array: each look at a memmap runs Python code."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)


def gguf_file(path: Path) -> GGUFReader:
    """What a file holds, read once for as long as it stays the same; not to be changed."""
    stamp = path.stat()
    return _read(path, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(8)
def _read(path: Path, changed: int, size: int) -> GGUFReader:
    return _Reader(path)


Field = tuple[Any, GGUFValueType, GGUFValueType | None]
"""A metadata entry, its type, and that of its elements where it is an array."""


def fields(path: Path, section: str) -> dict[str, Field]:
    """Entries of a section of a file."""
    found: dict[str, Field] = {}
    for name, field in gguf_file(path).fields.items():
        if name.startswith(f"{section}."):
            item = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            found[name] = (field.contents(), field.types[0], item)
    return found


def add_fields(writer: GGUFWriter, found: Mapping[str, Field]) -> None:
    for name, field in found.items():
        writer.add_key_value(name, *field)


def add_keys(writer: GGUFWriter, section: str, keys: Mapping[str, Any]) -> None:
    """Keys of a section, by the types of their values; nothing for None."""
    adds = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
    adds |= {list: writer.add_array, str: writer.add_string}
    for key, value in keys.items():
        if value is not None:
            adds[type(value)](f"{section}.{key}", value)


def written(writer: GGUFWriter, path: Path) -> Path:
    """The file, with all that was added to it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
