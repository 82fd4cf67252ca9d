from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from localspec.decoding.sampling import Rows
from localspec.errors import NativeError
from localspec.llama.context_params import MAX_LEAVES, MAX_TREE, context_params
from localspec.llama.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext, OverNative
from localspec.llama.options import ModelOptions
from localspec.llama.sequences import Sequences, quick, sequence_remove

BRANCH_IDS = 64
"""Sequence ids for all answers' branches, at most MAX_LEAVES each; each id reserves a row of
logits."""
KEPT_IDS = 16
"""Sequence ids for kept texts, at least two per answer."""
ROWS_EACH = 4
"""Rows of logits beyond one tree, per answer."""

_sequence_copy = quick(
    "llama_memory_seq_cp",
    None,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
)


class PassPart(NamedTuple):
    """One answer's part of a pass.

    Attributes:
        tokens: at least one.
        positions: of each in its text.
        sequences: ids of each token; a single list holds for all.
        outputs: rows of logits, for the last tokens.
        inputs: receives layer inputs, float32 [tokens, width] by layer; None if not wanted.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    sequences: Sequence[Sequence[int]]
    outputs: int
    inputs: dict[int, Rows] | None = None


class SharedContext(OverNative):
    """One KV cache for several answers, in shared passes.

    Each answer has a lot of sequence ids, for its text and branches; ids for kept texts follow.
    Nothing may touch it while a pass runs.

    Attributes:
        answers: count of lots; `leaves` sequence ids of each.
        capacity: most tokens of an answer, prompt included. All texts together have `cells`, shared
            tokens counted once.
        batch: most tokens of a pass; `rows` the most rows of logits.

    Args:
        cells: as many times the capacity.

    Raises:
        NativeError: there is no memory for it, or the model's memory is recurrent.
    """

    def __init__(self, model: Model, options: ModelOptions, *, cells: int = 1) -> None:
        if model.recurrent:
            raise NativeError(
                f"{model.path.name} has a recurrent memory, which cannot serve answers in parallel."
            )
        self.model = model
        self.answers = answers = options.parallel
        self.leaves = max(2, min(MAX_LEAVES, BRANCH_IDS // answers))
        self.kept = max(KEPT_IDS, 2 * answers)
        ids = answers * self.leaves + self.kept
        self.rows = max(ids, MAX_TREE + 1 + ROWS_EACH * answers)
        stop = ctypes.create_string_buffer(2)
        params = context_params(model, options, stop, sequences=ids, rows=self.rows)
        params.n_ctx *= cells
        wanted = f"{int(params.n_ctx)} tokens for {answers} answers"
        self._native = NativeContext(model, params, stop, wanted)
        self.memory, self.cells = self._native.memory, self._native.cells
        self.capacity = min(self.cells // cells, options.context or self.cells // cells)
        self.batch = self._native.batch
        self._filled = _Filled(self.batch, self.leaves)
        self._taps = HiddenStates(model, self._native.handle)
        self._tapped: set[int] = set()

    def want_inputs(self, layers: Iterable[int]) -> None:
        """Provide inputs of these layers in later passes, besides those asked for before. A
        NativeError as for `Context.want_hidden`."""
        if not self._tapped.issuperset(layers):
            self._tapped.update(layers)
            self._taps.want(tuple(sorted(self._tapped)))

    def lot(self, number: int) -> Lot:
        return Lot(self.memory, number * self.leaves, self.leaves)

    def kept_id(self, number: int) -> int:
        """The sequence id of a kept text, 0 … `kept` - 1."""
        return self.answers * self.leaves + number

    def share(self, source: int, destination: int, length: int) -> None:
        """Have a sequence begin with another's first tokens, without copying."""
        _sequence_copy(self.memory, source, destination, 0, length)

    def drop(self, sequence: int) -> None:
        sequence_remove(self.memory, sequence, 0, -1)

    def longest(self, sequence: int) -> int:
        return self._native.length(sequence)

    def decode(self, parts: Sequence[PassPart]) -> list[Rows]:
        """One pass over at most `batch` tokens and `rows` outputs.

        Returns:
            For each part float32 [outputs, vocabulary], views that the next pass overwrites.

        Raises:
            CacheFull: nothing was read.
            Cancelled, NativeError: some of the tokens may have been read.
        """
        address = self._native.decode(self._filled.fill(parts))
        start = 0
        for part in parts:
            if part.inputs is not None:
                part.inputs.update(self._taps.tapped(start, len(part.tokens)))
            start += len(part.tokens)
        return self._rows(parts, address)

    def undo(self, parts: Sequence[PassPart]) -> None:
        """Drop what a failed pass may have read."""
        for part in parts:
            starts: dict[int, int] = {}
            ids = (
                part.sequences if len(part.sequences) > 1 else [*part.sequences] * len(part.tokens)
            )
            for position, sequences in zip(part.positions, ids, strict=True):
                for sequence in sequences:
                    starts[sequence] = min(position, starts.get(sequence, position))
            for sequence, start in starts.items():
                sequence_remove(self.memory, sequence, start, -1)

    def _rows(self, parts: Sequence[PassPart], address: int) -> list[Rows]:
        rows = self._native.rows(address, sum(part.outputs for part in parts))
        if len(parts) == 1:
            return [rows]
        found, start = [], 0
        for part in parts:
            found.append(rows[start : start + part.outputs])
            start += part.outputs
        return found


class Lot(Sequences):
    """The sequence ids of one answer: number 0 is `first`."""

    def __init__(self, memory: Any, first: int, count: int) -> None:
        super().__init__(memory, count)
        self.first = first
        self._open = 1  # numbers below this one may hold something behind the committed tokens

    def share(self, sequence: int, length: int) -> None:
        self._open = max(self._open, sequence + 1)
        super().share(sequence, length)

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        _sequence_copy(self._memory, self.first + source, self.first + destination, start, end)

    def keep(self, winner: int, held: int, kept: int, used: int) -> None:
        super().keep(winner, held, kept, used)
        self._open = 1

    def remove(self, sequence: int, start: int) -> bool:
        if sequence >= 0:
            return bool(sequence_remove(self._memory, self.first + sequence, start, -1))
        for number, shared in enumerate(self._shared):
            if number < self._open or shared > start:
                sequence_remove(self._memory, self.first + number, start, -1)
        return True

    def cut(self, length: int) -> None:
        self.remove(-1, length)
        self._open = 1
        self.forget(length)


class _Filled:
    """A llama_batch over reusable arrays."""

    def __init__(self, capacity: int, leaves: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._sequences = np.zeros((capacity, leaves), np.int32)
        self._output = np.zeros(capacity, np.int8)
        stride = self._sequences.strides[0]
        # llama.cpp wants a table of pointers, one to each token's sequence ids.
        self._table = self._sequences.ctypes.data + stride * np.arange(capacity, dtype=np.uintp)
        self._batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, ctypes.c_int32),
            pos=_pointer(self._position, ctypes.c_int32),
            n_seq_id=_pointer(self._count, ctypes.c_int32),
            seq_id=_pointer(self._table, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._output, ctypes.c_int8),
        )

    def fill(self, parts: Sequence[PassPart]) -> Any:
        if len(parts) == 1 and len(parts[0].tokens) == 1:
            return self._fill_one(parts[0])
        start = 0
        for part in parts:
            end = start + len(part.tokens)
            self._token[start:end] = part.tokens
            self._position[start:end] = part.positions
            self._output[start:end] = 0
            self._output[end - part.outputs : end] = 1
            if len(part.sequences) == 1:
                (ids,) = part.sequences
                self._count[start:end] = len(ids)
                self._sequences[start:end, : len(ids)] = ids
            else:
                for row, ids in enumerate(part.sequences, start):
                    self._count[row] = len(ids)
                    self._sequences[row, : len(ids)] = ids
            start = end
        self._batch.n_tokens = start
        return self._batch

    def _fill_one(self, part: PassPart) -> Any:
        self._token[0] = part.tokens[0]
        self._position[0] = part.positions[0]
        self._output[0] = part.outputs
        ids = part.sequences[0]
        self._count[0] = len(ids)
        self._sequences[0, : len(ids)] = ids
        self._batch.n_tokens = 1
        return self._batch


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
