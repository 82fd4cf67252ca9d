from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.errors import NativeError
from localspec.llama import kernels

State = npt.NDArray[np.uint8]
_BYTES = ctypes.POINTER(ctypes.c_uint8)

APART = 8
"""Tokens between saved states of a draft; going back rereads at most so many."""
MOST = 8
"""Saved states. Each may take a pass's time to copy, and some megabytes."""

# Of a memory that is recurrent in part, only that part: attention can be cut back by itself.
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def copied(context: Any, sequence: int = 0) -> State:
    """A copy of a sequence's memory; a NativeError or MemoryError if there is none."""
    size = int(llama_cpp.llama_state_seq_get_size(context, sequence))
    state = np.empty(size, np.uint8)
    got = llama_cpp.llama_state_seq_get_data(context, state.ctypes.data_as(_BYTES), size, sequence)
    if not size or got != size:
        raise NativeError("llama.cpp does not give out the memory of this model.")
    return state


def put(context: Any, state: State, sequence: int = 0) -> bool:
    """Have a sequence hold what `copied` gave; False, and empty, if it does not fit."""
    with kernels.restoring(positions(state)):
        read = llama_cpp.llama_state_seq_set_data(
            context, state.ctypes.data_as(_BYTES), state.size, sequence
        )
    return int(read) == state.size


class SavedStates:
    """Past states of a llama_context's recurrent memory, by their count of tokens."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._states: list[tuple[int, Any]] = []
        self._due = True

    def due(self, length: int) -> bool:
        """Whether a state is worth saving: the first after a cut, and later every APART tokens."""
        if not self._states:
            return True
        last = self._states[-1][0]
        return length > last and (self._due or length - last >= APART)

    def save(self, length: int) -> None:
        size = llama_cpp.llama_state_seq_get_size_ext(self._context, 0, _PARTIAL)
        state = (ctypes.c_uint8 * size)()
        copied = llama_cpp.llama_state_seq_get_data_ext(self._context, state, size, 0, _PARTIAL)
        if copied == size:
            del self._states[: len(self._states) + 1 - MOST]
            self._states.append((length, state))
            self._due = False

    def cut(self, length: int) -> None:
        """Forget states of more tokens, which are about to be dropped, and old ones."""
        self._states = [one for one in self._states if one[0] <= length][-2:]
        self._due = True

    def forget(self) -> None:
        self._states.clear()

    def restore(self, length: int) -> int | None:
        """Go back to a state of at most `length` tokens; its count, None without one."""
        self.cut(length)
        if not self._states:
            return None
        held, state = self._states[-1]
        read = llama_cpp.llama_state_seq_set_data_ext(self._context, state, len(state), 0, _PARTIAL)
        return held if read else None


_EXTENSION = 3
_MOST_STREAMS, _MOST_LAYERS = 256, 1 << 16


def positions(state: npt.NDArray[np.uint8]) -> npt.NDArray[np.int32] | None:
    """Positions of a state's cells, int32 [cells], in its order; None if unknown, or if its caches
    differ.

    Layout (llama-context.cpp `state_seq_get_data`, llama-kv-cache.cpp `state_write`): a magic
    number, the sequence; for each KV cache its count of streams; for each stream its count of
    cells, the cells (position, count of sequences, an extension for positions of several
    dimensions, the sequences), keys and values. A window's cache comes second, recurrent memory
    last.
    """
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
