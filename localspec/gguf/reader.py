"""Read metadata and tensor lists of untrusted GGUF files.

The package gguf is for trusted files: it takes seconds, trusts any count in a file, and maps
files. Here everything is checked against the file's size, arrays are not decoded, and a budget
bounds the work. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import re
import stat
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import BinaryIO

from localspec.errors import LocalspecError, ModelInvalid, ModelNotFound
from localspec.files import gguf_fault
from localspec.gguf.file import (
    ARRAY,
    NUMBERS,
    STRING,
    Array,
    GGUFFile,
    Scalar,
    TensorInfo,
    Value,
)
from localspec.gguf.names import parts_of
from localspec.llama.types import TYPES

LIMITS = {
    "bytes of metadata": 48 << 20,  # the largest known vocabularies take 16 MB
    "keys": 20_000,
    "tensors": 100_000,
    "strings": 2_000_000,  # in arrays; known files have up to 800,000
    "bytes of text": 16 << 20,
}
"""What all parts of a file together may have."""
_MAX_KEY_LENGTH = 65_535
_MAX_TEXT_LENGTH = 8 << 20
"""Bytes of a text; keys of longer ones, such as a whole tokenizer in JSON, are left out."""
MAX_PARTS = 1_000

_CHUNK = 1 << 20
_SETTLED = 2.0  # seconds; more than the resolution of the times of any file system
_HEADER = struct.Struct("<4sIQQ")
_U64 = struct.Struct("<Q")


def read_gguf(path: Path) -> GGUFFile:
    """Read metadata and tensor list, of all parts of a split file, within a second and 200 MB;
    recent files are cached unless they change. Raises ModelNotFound if it cannot be read, or a part
    is missing, and ModelInvalid if it is damaged, truncated, or a later part of a split file."""
    try:
        seen = [path.with_name(name).stat() for name in parts_of(path.name)]
    except (OSError, ValueError):
        return _read_anew(path)
    # A file that is still being written may change twice within the resolution of its time.
    if max(one.st_mtime for one in seen) > time.time() - _SETTLED:
        return _read_anew(path)
    return _remembered(
        path, *((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in seen)
    )


def readable(path: Path) -> GGUFFile | None:
    """As `read_gguf`, but None where that raises."""
    with suppress(LocalspecError):
        return read_gguf(path)
    return None


@lru_cache(maxsize=3)  # a target, its draft model, and one more
def _remembered(path: Path, *seen: tuple[int, ...]) -> GGUFFile:
    return _read_anew(path)


def _read_anew(path: Path) -> GGUFFile:
    budget, parts = dict(LIMITS), [path]
    read = [first := _read_part(path, 0, budget)]
    count = first.metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        parts = _parts(path, first.metadata, count)
    for number, part in enumerate(parts[1:], 1):
        try:
            read.append(_read_part(part, number, budget))
        except ModelNotFound:
            raise ModelNotFound(
                f"{path} is the first of {count} parts, and {part.name} is missing. "
                "Download all of them into one folder."
            ) from None
        other = read[-1].metadata
        if other.get("split.no") != number or other.get("split.count") != count:
            raise ModelInvalid(
                f"{part} is not part {number + 1} of {count} of {path.name}. Download it again."
            )
    found = tuple(tensor for file in read for tensor in file.tensors)
    total = first.metadata.get("split.tensors.count")
    if len(parts) > 1 and isinstance(total, int) and total != len(found):
        raise ModelInvalid(
            f"{path} should have {total} tensors in its {count} parts, and has {len(found)}. "
            "Download all of them again."
        )
    whole = {key: value for key, value in first.metadata.items() if not key.startswith("split.")}
    size = sum(file.size for file in read)
    return replace(first, parts=tuple(parts), size=size, metadata=whole, tensors=found)


def _parts(path: Path, metadata: Mapping[str, Value], count: int) -> list[Path]:
    """The files of a split model. Raises ModelInvalid if this is not the first, or is misnamed."""
    names = parts_of(path.name)
    if metadata.get("split.no") != 0:
        first = f" ({names[0]})" if len(names) > 1 else ""
        raise ModelInvalid(f"{path} is a later part of a split model. Name the first one{first}.")
    if count > MAX_PARTS:
        raise ModelInvalid(f"{path} claims to have {count} parts. Download it again.")
    if path.name != names[0] or len(names) != count:
        raise ModelInvalid(
            f"{path} is the first of {count} parts, which its name does not show. "
            f"Name the files x-00001-of-{count:05d}.gguf and so on. Parts that were joined with "
            "'cat' must be downloaded again."
        )
    return [path.with_name(name) for name in names]


class _DamagedFile(Exception):
    """A damaged file; the message continues a sentence that begins with the path."""


def _require(budget: dict[str, int], what: str, amount: int) -> None:
    if amount > budget[what]:
        raise _DamagedFile(f"claims to have more {what} than any model")


def _spend(budget: dict[str, int], what: str, amount: int) -> None:
    _require(budget, what, amount)
    budget[what] -= amount


class _Reader:
    """A cursor over a file, which is read as needed."""

    def __init__(self, file: BinaryIO, size: int, budget: dict[str, int]) -> None:
        self.at = 0
        self._file, self._size, self._budget = file, size, budget
        self._data = bytearray()

    def _need(self, count: int) -> None:
        end = self.at + count
        if end <= len(self._data):
            return
        if end > self._size:
            raise _DamagedFile("ends in the middle of its metadata")
        _require(self._budget, "bytes of metadata", end)
        more = min(max(end - len(self._data), _CHUNK), self._size - len(self._data))
        self._data += self._file.read(more)
        if end > len(self._data):
            raise _DamagedFile("shrank while it was read")

    def u32(self) -> int:
        return int.from_bytes(self.raw(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.raw(8), "little")

    def raw(self, count: int) -> bytes:
        self._need(count)
        self.at += count
        return bytes(self._data[self.at - count : self.at])

    def name(self, what: str, longest: int) -> str:
        length = self.u64()
        if not 0 < length <= longest:
            raise _DamagedFile(f"has a {what} of {length} bytes")
        try:
            return self.raw(length).decode("utf-8")
        except UnicodeDecodeError:
            raise _DamagedFile(f"has a {what} that is not UTF-8") from None

    def value(self, kind: int) -> Value | None:
        """A value of a type; None for a text that is too long to keep."""
        if kind == STRING:
            return self._text()
        if kind == ARRAY:
            return self._array()
        layout = _layout(kind)
        value: Scalar = layout.unpack(self.raw(layout.size))[0]
        return value

    def _text(self) -> str | None:
        length = self.u64()
        self._need(length)
        if length > _MAX_TEXT_LENGTH:
            self.at += length
            return None
        _spend(self._budget, "bytes of text", length)
        return self.raw(length).decode("utf-8", "replace")

    def _array(self) -> Array:
        kind, count = self.u32(), self.u64()
        if kind == ARRAY:
            raise _DamagedFile("has an array of arrays, which llama.cpp does not read")
        if kind == STRING:
            return self._strings(count)
        return Array(self.raw(count * _layout(kind).size), kind, count)

    def _strings(self, count: int) -> Array:
        _spend(self._budget, "strings", count)
        start = at = self.at
        unpack, data, known = _U64.unpack_from, self._data, len(self._data)
        for _ in range(count):
            if at + 8 > known:
                self.at = at
                self._need(8)
                known = len(data)
            at += 8 + unpack(data, at)[0]
            if at > self._size:
                raise _DamagedFile("has a text in an array that is longer than the file")
        self.at = start
        return Array(self.raw(at - start), STRING, count)


def _layout(kind: int) -> struct.Struct:
    if kind not in NUMBERS:
        raise _DamagedFile(f"has a value of unknown type {kind}")
    return struct.Struct("<" + NUMBERS[kind])


def _read_part(path: Path, part: int, budget: dict[str, int]) -> GGUFFile:
    """Read one file."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelNotFound(f"{path} is a folder. Name the .gguf file in it.")
        # Opening a pipe would wait for a writer.
        if not stat.S_ISREG(status.st_mode):
            raise ModelNotFound(f"{path} is not a file. Name a .gguf file.")
        with path.open("rb") as file:
            return _read(file, path, part, status.st_size, budget)
    except ModelNotFound:  # also a FileNotFoundError
        raise
    except FileNotFoundError:
        raise ModelNotFound(f"There is no file {path}. Check the path.") from None
    except OSError as error:
        why = error.strerror or error
        raise ModelNotFound(f"{path} cannot be read: {why}. Check its permissions.") from None
    except ValueError:  # a NUL in the path
        raise ModelNotFound(f"{path!r} is not a path. Check it.") from None
    except _DamagedFile as error:
        raise ModelInvalid(f"{path} {error}. Download it again.{_join_advice(path)}") from None


def _join_advice(path: Path) -> str:
    """Advice if the file may be a piece of a larger one, as cut by `split`."""
    found = re.fullmatch(r"(.+\.gguf)[._-]\w.*", path.name, re.IGNORECASE)
    return f" If it is a piece of {found[1]}, join all pieces in order with 'cat'." if found else ""


def _read(file: BinaryIO, path: Path, part: int, size: int, budget: dict[str, int]) -> GGUFFile:
    reader = _Reader(file, size, budget)
    if not size:
        raise _DamagedFile("is empty")
    if fault := gguf_fault(file.read(_HEADER.size)):
        raise ModelInvalid(f"{path} {fault}{_join_advice(path)}")
    file.seek(0)
    _, _, n_tensors, n_keys = _HEADER.unpack(reader.raw(_HEADER.size))
    _spend(budget, "keys", n_keys)
    _spend(budget, "tensors", n_tensors)
    metadata: dict[str, Value] = {}
    kinds: dict[str, int] = {}
    for _ in range(n_keys):
        key = reader.name("key", _MAX_KEY_LENGTH)
        if key in kinds:
            raise _DamagedFile("has the same key twice")
        kinds[key] = reader.u32()
        if (value := reader.value(kinds[key])) is not None:
            metadata[key] = value
    found = _tensors(reader, n_tensors, metadata, part, size)
    _spend(budget, "bytes of metadata", reader.at)
    return GGUFFile(path, (path,), size, metadata, tuple(found), kinds)


def _tensors(
    reader: _Reader, count: int, metadata: Mapping[str, Value], part: int, size: int
) -> list[TensorInfo]:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _DamagedFile("has an alignment that is not a power of two")
    found = [_tensor(reader, part) for _ in range(count)]
    if len({tensor.name for tensor in found}) < count:
        raise _DamagedFile("has two tensors with the same name")
    base = -(-reader.at // alignment) * alignment
    for tensor in found:
        if tensor.offset % alignment:
            raise _DamagedFile("has a tensor that is not aligned")
        if base + tensor.offset + tensor.size > size:
            need = max(base + tensor.offset + tensor.size for tensor in found)
            raise _DamagedFile(f"is incomplete: its tensors need {need:,} bytes; it has {size:,}")
    return [TensorInfo(t.name, t.shape, t.type, base + t.offset, t.size, t.part) for t in found]


def _tensor(reader: _Reader, part: int) -> TensorInfo:
    name = reader.name("tensor name", 1024)
    dimensions = reader.u32()
    if dimensions > 4:
        raise _DamagedFile(f"has a tensor of {dimensions} dimensions")
    shape = tuple(reader.u64() for _ in range(dimensions))
    kind = TYPES.get(reader.u32())
    if kind is None:
        raise _DamagedFile("has a tensor of a type that this llama.cpp does not know")
    label, block, size = kind
    elements = prod(shape)
    if elements >= 1 << 63 or any(n >= 1 << 63 for n in shape) or (shape or (1,))[0] % block:
        raise _DamagedFile("has a tensor with an impossible shape")
    return TensorInfo(name, shape, label, reader.u64(), elements // block * size, part)
