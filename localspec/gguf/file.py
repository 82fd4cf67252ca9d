from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import overload

STRING, ARRAY = 8, 9
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF's value types of fixed size, as struct spells them."""

_U64 = struct.Struct("<Q")

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class SkippedText:
    """A text too long to keep; `length` in bytes."""

    length: int


class Array(Sequence[Scalar]):
    """An array of the metadata: its bytes `raw` without type and count, decoded on access.

    `kind`: GGUF's value type; `strings`: whether elements are texts (UTF-8, else replaced).
    """

    __slots__ = ("_format", "_length", "_starts", "kind", "raw", "strings")

    def __init__(self, raw: bytes, kind: int, length: int) -> None:
        self.raw = raw
        self.kind = kind
        self.strings = kind == STRING
        self._format = "" if self.strings else NUMBERS[kind]
        self._length = length
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | Sequence[Scalar]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        index %= self._length
        if self.strings:
            return self.bytes_of(index).decode("utf-8", "replace")
        one = struct.Struct("<" + self._format)
        value: Scalar = one.unpack_from(self.raw, index * one.size)[0]
        return value

    def __iter__(self) -> Iterator[Scalar]:
        if self.strings:
            return (self[i] for i in range(self._length))
        return iter(struct.unpack(f"<{self._length}{self._format}", self.raw))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Array):
            return NotImplemented
        return self._kind == other._kind and self.raw == other.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"<{self._length} × {self._format or 'str'}>"

    @property
    def _kind(self) -> tuple[str, int]:
        return self._format, self._length

    def bytes_of(self, index: int) -> bytes:
        start = self._offsets()[index]
        return self.raw[start + 8 : start + 8 + _U64.unpack_from(self.raw, start)[0]]

    def index_of(self, text: bytes) -> int | None:
        """Where a text is, None if missing."""
        entry = _U64.pack(len(text)) + text
        at = self.raw.find(entry)
        while at >= 0:  # most often never or once: the bytes are looked at in bulk
            starts = self._offsets()
            index = bisect_left(starts, at)
            if index < len(starts) and starts[index] == at:
                return index
            at = self.raw.find(entry, at + 1)
        return None

    def all_bytes(self) -> Iterator[bytes]:
        raw, at, unpack = self.raw, 0, _U64.unpack_from
        for _ in range(self._length):
            end = at + 8 + unpack(raw, at)[0]
            yield raw[at + 8 : end]
            at = end

    def taken(self, indices: Sequence[int]) -> Array:
        if self.strings:
            texts = [self.bytes_of(index) for index in indices]
            raw = b"".join(_U64.pack(len(text)) + text for text in texts)
        else:
            size = struct.calcsize("<" + self._format)
            raw = b"".join(self.raw[index * size : (index + 1) * size] for index in indices)
        return Array(raw, self.kind, len(indices))

    def head(self, count: int) -> bytes:
        """The bytes of the first elements."""
        if count >= self._length:
            return self.raw
        if self.strings:
            return self.raw[: self._offsets()[count]]
        return self.raw[: count * struct.calcsize("<" + self._format)]

    def _offsets(self) -> list[int]:
        if self._starts is None:
            starts, at, unpack = [], 0, _U64.unpack_from
            for _ in range(self._length):
                starts.append(at)
                at += 8 + unpack(self.raw, at)[0]
            self._starts = starts
        return self._starts


Value = Scalar | Array | SkippedText


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """`shape`: fastest dimension first; `type`: "F16", "Q4_K" …; `offset`: in bytes, in the file
    number `part`; `size`: bytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    size: int
    part: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """Everything but the weights: `parts` of a split model and bytes of all of them, metadata of
    the first part, value types of its keys, tensors of all."""

    path: Path
    parts: tuple[Path, ...]
    size: int
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def n_parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or "unknown"

    def text(self, key: str) -> str | None:
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def array(self, key: str) -> Array | None:
        value = self.metadata.get(key)
        return value if isinstance(value, Array) else None

    def own(self, key: str) -> Value | None:
        """A value of the architecture's section, e.g. "context_length"."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def own_integer(self, key: str) -> int | None:
        return self.integer(f"{self.architecture}.{key}")

    def numbers(self, key: str, most: int = 10_000) -> list[int]:
        """Whole numbers of the architecture's section: one, or one per layer."""
        value = self.own(key)
        found = value[:most] if isinstance(value, Array) else [value]
        return [one for one in found if isinstance(one, int) and not isinstance(one, bool)]
