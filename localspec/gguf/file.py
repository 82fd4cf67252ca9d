from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from math import prod
from pathlib import Path

U32, I32, FLOAT, STRING, ARRAY = 4, 5, 6, 8, 9
"""Some of GGUF's value types."""
NUMBERS = dict(zip([*range(8), 10, 11, 12], "BbHhIif?Qqd", strict=True))
"""GGUF's value types of fixed size, in struct's notation."""

_U64 = struct.Struct("<Q")

Scalar = str | int | float | bool


@dataclass(slots=True)
class Array:
    """An array of the metadata, decoded on access. `raw`: its bytes without type and count; `kind`:
    GGUF's value type. Invalid UTF-8 is replaced in texts."""

    raw: bytes = field(repr=False)
    kind: int
    length: int
    _starts: list[int] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def strings(self) -> bool:
        return self.kind == STRING

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Scalar:
        index = range(self.length)[index]
        if self.strings:
            return self.bytes_of(index).decode("utf-8", "replace")
        layout = struct.Struct("<" + NUMBERS[self.kind])
        value: Scalar = layout.unpack_from(self.raw, index * layout.size)[0]
        return value

    def __iter__(self) -> Iterator[Scalar]:
        if self.strings:
            return (self[i] for i in range(self.length))
        return iter(struct.unpack(f"<{self.length}{NUMBERS[self.kind]}", self.raw))

    def bytes_of(self, index: int) -> bytes:
        start = self._offsets()[index]
        return self.raw[start + 8 : start + 8 + _U64.unpack_from(self.raw, start)[0]]

    def index_of(self, text: bytes) -> int | None:
        """The index of a text, None if missing."""
        entry = _U64.pack(len(text)) + text
        at = self.raw.find(entry)
        while at >= 0:  # rarely more than once, as find() searches all bytes
            starts = self._offsets()
            index = bisect_left(starts, at)
            if index < len(starts) and starts[index] == at:
                return index
            at = self.raw.find(entry, at + 1)
        return None

    def all_bytes(self) -> Iterator[bytes]:
        raw, at, unpack = self.raw, 0, _U64.unpack_from
        for _ in range(self.length):
            end = at + 8 + unpack(raw, at)[0]
            yield raw[at + 8 : end]
            at = end

    def select(self, indices: Sequence[int]) -> Array:
        if self.strings:
            texts = [self.bytes_of(index) for index in indices]
            raw = b"".join(_U64.pack(len(text)) + text for text in texts)
        else:
            size = struct.calcsize("<" + NUMBERS[self.kind])
            raw = b"".join(self.raw[index * size : (index + 1) * size] for index in indices)
        return Array(raw, self.kind, len(indices))

    def _offsets(self) -> list[int]:
        if self._starts is None:
            lengths = (8 + len(text) for text in self.all_bytes())
            self._starts = [*accumulate(lengths, initial=0)]
        return self._starts


Value = Scalar | Array


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
    """A GGUF file without its weights. `parts`: files of a split model; `size`: bytes of all parts;
    `metadata`: of the first part without those of the split; `kinds`: value types of its keys;
    `tensors`: of all parts."""

    path: Path
    parts: tuple[Path, ...]
    size: int
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
    def by_name(self) -> dict[str, TensorInfo]:
        return {tensor.name: tensor for tensor in self.tensors}

    @property
    def tied(self) -> bool:
        """Whether the token embeddings are the output matrix as well."""
        return "output.weight" not in self.by_name

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

    def count(self, key: str) -> int:
        """A count of the architecture's section, clamped; 0 if missing."""
        return clamped(self.own_integer(key) or 0)

    def numbers(self, key: str, most: int = 10_000) -> list[int]:
        """Integers of the architecture's section: one, or one per layer."""
        value = self.own(key)
        values: Iterable[object] = islice(value, most) if isinstance(value, Array) else [value]
        return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def clamped(count: int) -> int:
    """A count from the metadata as a plausible one."""
    return min(max(0, count), 1 << 40)
