"""Write GGUF files."""

import errno
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from localspec import paths
from localspec.files import explaining, free_space, remove_abandoned, replacing
from localspec.gguf.file import NUMBERS, Array, Value
from localspec.llama.types import TYPE_NUMBERS, row_bytes
from localspec.text import gigabytes

_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to write. `shape`: fastest dimension first; `data`: its bytes, or a function that
    returns them on writing, as all tensors may take gigabytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    data: bytes | Callable[[], bytes | memoryview]

    @property
    def size(self) -> int:
        return row_bytes(self.type, self.shape[0]) * prod(self.shape[1:])


@contextmanager
def writing(path: Path, advice: str = paths.ADVICE) -> Iterator[Path]:
    """As `replacing`, for a model; first removes the files of killed processes. Raises
    LocalspecError, with `advice` as the next step, where `replacing` raises OSError."""
    with explaining(path, advice):
        remove_abandoned(path.parent, "*.gguf.*.partial")
        with replacing(path) as partial:
            yield partial


def require_room(folder: Path, size: int) -> None:
    """Raise OSError if a disk has less than `size` bytes left."""
    free = free_space(folder)
    if free < size:
        why = f"it takes {gigabytes(size)}, and {folder} has {gigabytes(int(free))}"
        raise OSError(errno.ENOSPC, why)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    kinds: Mapping[str, int],
    tensors: Sequence[NewTensor],
) -> None:
    """Write a file, or raise OSError. `metadata`: as read; `kinds`: value
    type of each key."""
    entries = [
        _text(key) + struct.pack("<I", kinds[key]) + _value(kinds[key], value)
        for key, value in metadata.items()
        if key != "general.alignment"
    ]
    infos, offsets = [], []
    end = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        kind = struct.pack("<IQ", TYPE_NUMBERS[tensor.type], end)
        infos.append(_text(tensor.name) + shape + kind)
        offsets.append(end)
        end += _align(tensor.size)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries))
    head += b"".join([*entries, *infos])
    start = _align(len(head))
    with path.open("wb") as file:
        file.write(head)
        for tensor, offset in zip(tensors, offsets, strict=True):
            file.seek(start + offset)
            file.write(tensor.data if isinstance(tensor.data, bytes) else tensor.data())
        file.truncate(start + end)


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(kind: int, value: Value) -> bytes:
    if isinstance(value, Array):
        return struct.pack("<IQ", value.kind, len(value)) + value.raw
    if isinstance(value, str):
        return _text(value)
    return struct.pack("<" + NUMBERS[kind], value)
