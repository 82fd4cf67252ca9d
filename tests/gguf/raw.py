"""GGUF files byte by byte, for content that no writer produces."""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack("<" + _NUMBERS[kind], value)


def array(kind: int, values: Sequence[Any]) -> bytes:
    """The value of an array, behind its key's type."""
    return struct.pack("<IQ", kind, len(values)) + b"".join(scalar(kind, v) for v in values)


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


Value = bool | int | float | str | Sequence[int] | Sequence[str] | None
_KINDS = {str: STRING, float: F32, bool: BOOL, int: U32}


def keyed(values: Mapping[str, Value]) -> list[bytes]:
    """Keys with values of their types, lists of numbers as I32; none for None."""
    found = []
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            kind = STRING if value and isinstance(value[0], str) else I32
            found.append(key(name, ARRAY, array(kind, value)))
        elif value is not None:
            kind = _KINDS[type(value)]
            found.append(key(name, kind, scalar(kind, value)))
    return found


@dataclass(frozen=True)
class Tensor:
    """A line of the list of tensors."""

    name: str | bytes
    shape: tuple[int, ...]
    kind: int = 0
    offset: int = 0

    def __bytes__(self) -> bytes:
        shape = struct.pack(f"<I{len(self.shape)}Q", len(self.shape), *self.shape)
        return text(self.name) + shape + struct.pack("<IQ", self.kind, self.offset)


def gguf(
    keys: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    data: int = 0,
    *,
    version: int = 3,
    more_keys: int = 0,
    more_tensors: int = 0,
) -> bytes:
    """A file with this many bytes of weights after its metadata. `more_keys`, `more_tensors`: that
    its header counts, and that are not there."""
    counts = (len(tensors) + more_tensors, len(keys) + more_keys)
    head = struct.pack("<4sIQQ", b"GGUF", version, *counts)
    head += b"".join(keys) + b"".join(map(bytes, tensors))
    return head + bytes(-len(head) % 32 + data)


def write_model(
    path: Path,
    *,
    architecture: str = "llama",
    own: Mapping[str, Value] | None = None,
    more: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    data: int = 0,
) -> Path:
    """A file with an architecture and its section."""
    section = {f"{architecture}.{name}": value for name, value in (own or {}).items()}
    keys = keyed({"general.architecture": architecture, **section})
    head = gguf([*keys, *more], tensors)
    path.write_bytes(head)
    os.truncate(path, len(head) + data)  # weights are a hole: large models take no time
    return path
