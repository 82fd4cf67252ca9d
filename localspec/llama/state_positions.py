"""Positions of the cells in a state of llama_state_seq_get_data.

Layout (llama-context.cpp `state_seq_get_data`, llama-kv-cache.cpp `state_write`): a magic
number, the sequence; for each KV cache its count of streams; for each stream its count of
cells, the cells (position, count of sequences, an extension for positions of several
dimensions, the sequences), keys and values. A window's cache comes second, recurrent memory
last.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_EXTENSION = 3
_MOST_STREAMS, _MOST_LAYERS = 256, 1 << 16


def positions(state: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32] | None:
    """Positions, int32 [cells], in the state's order; None if unknown, or if caches differ."""
    reader = _Reader(state)
    found: list[npt.NDArray[np.int32]] = []
    try:
        _, sequence = reader.numbers("Ii")
        while not reader.over:
            before = reader.offset
            try:
                found += [*_cache(reader, sequence)]
            except _NotUnderstood:
                if not found:
                    raise
                reader.offset = before  # a recurrent memory's
                break
    except _NotUnderstood:
        return None
    alike = found and all(np.array_equal(found[0], one) for one in found)
    return found[0] if alike else None


class _NotUnderstood(Exception):
    """No KV cache, or another version's."""


class _Reader:
    def __init__(self, state: npt.NDArray[np.uint8]) -> None:
        self._bytes = np.ascontiguousarray(state).data.cast("B")
        self.offset = 0

    @property
    def over(self) -> bool:
        return self.offset == len(self._bytes)

    def numbers(self, kinds: str) -> tuple[int, ...]:
        return struct.unpack("<" + kinds, self.take(struct.calcsize("<" + kinds)))

    def take(self, size: int) -> memoryview:
        piece = self._bytes[self.offset : self.offset + size]
        if len(piece) < size:
            raise _NotUnderstood
        self.offset += size
        return piece


def _cache(reader: _Reader, sequence: int) -> Iterator[npt.NDArray[np.int32]]:
    (streams,) = reader.numbers("I")
    if not 0 < streams <= _MOST_STREAMS:
        raise _NotUnderstood
    for _ in range(streams):
        (cells,) = reader.numbers("I")
        if cells:
            yield _cells(reader, cells, sequence)
            _skip_data(reader, cells)


def _cells(reader: _Reader, cells: int, sequence: int) -> npt.NDArray[np.int32]:
    start = reader.offset
    for extension in (0, _EXTENSION):
        reader.offset = start
        width = 3 + extension
        table = np.frombuffer(reader.take(4 * width * cells), np.int32).reshape(cells, width)
        if (table[:, 1] == 1).all() and (table[:, -1] == sequence).all():
            return table[:, 0].copy()
    raise _NotUnderstood


def _skip_data(reader: _Reader, cells: int) -> None:
    """Keys of all layers, then values, unless keys stand for both."""
    transposed, layers = reader.numbers("II")
    if transposed > 1 or not 0 < layers <= _MOST_LAYERS:
        raise _NotUnderstood
    for _ in range(layers):
        _, row = reader.numbers("iQ")
        reader.take(cells * row)
    start = reader.offset
    try:
        for _ in range(layers):
            if transposed:
                _, size, rows = reader.numbers("iII")
                reader.take(cells * size * rows)
            else:
                _, row = reader.numbers("iQ")
                reader.take(cells * row)
    except _NotUnderstood:
        reader.offset = start
