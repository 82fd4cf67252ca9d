"""llama.cpp batches over numpy arrays, filled without a loop over ctypes fields."""

import ctypes
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from localspec.decoding.sampling import Rows


class PassPart(NamedTuple):
    """The tokens of one text in a pass, at least one.

    Attributes:
        sequences: sequence ids by token, or one list for all tokens. The first token has all ids.
        outputs: rows of logits, for the last tokens.
        inputs: receives layer inputs, float32 [tokens, width] by layer.
        states: the states that a trained head reads with its tokens, float32 [tokens, width].
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    sequences: Sequence[Sequence[int]]
    outputs: int
    inputs: dict[int, Rows] | None = None
    states: Rows | None = None


def chain(
    tokens: Sequence[int],
    outputs: int,
    start: int = 0,
    sequence: int = 0,
    states: Rows | None = None,
) -> PassPart:
    """Tokens of one sequence from position `start` on."""
    positions = range(start, start + len(tokens))
    return PassPart(tokens, positions, ((sequence,),), outputs, states=states)


class Batch:
    """Arrays for passes of up to `capacity` tokens, each in up to `leaves` sequences. `width`: size
    of the state with each token, for trained heads."""

    def __init__(self, capacity: int, leaves: int, width: int = 0) -> None:
        # Lists are copied to ctypes arrays in a third of the time that numpy takes.
        numbers: Any = ctypes.c_int32 * capacity  # Any: its stubs accept only lists
        self._tokens, self._positions, self._count = numbers(), numbers(), numbers()
        self._output: Any = (ctypes.c_int8 * capacity)()
        self._leaves = leaves
        self._sequences: Any = (ctypes.c_int32 * (capacity * leaves))()
        self._state = np.zeros((capacity, width), np.float32)
        # llama.cpp wants a table of pointers, one to each token's sequence ids.
        stride, first = 4 * leaves, ctypes.addressof(self._sequences)
        self._table = first + stride * np.arange(capacity, dtype=np.uintp)
        self._batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=self._tokens,
            embd=_pointer(self._state, ctypes.c_float) if width else None,
            pos=self._positions,
            n_seq_id=self._count,
            seq_id=_pointer(self._table, ctypes.POINTER(ctypes.c_int32)),
            logits=self._output,
        )

    def fill(self, parts: Sequence[PassPart]) -> Any:
        """A llama_batch of these parts, valid until the next call."""
        start, leaves = 0, self._leaves
        for part in parts:
            count = len(part.tokens)
            end = start + count
            self._tokens[start:end] = part.tokens
            self._positions[start:end] = part.positions
            self._output[start:end] = [0] * (count - part.outputs) + [1] * part.outputs
            each = part.sequences if len(part.sequences) > 1 else repeat(part.sequences[0], count)
            for row, ids in enumerate(each, start):
                self._count[row] = len(ids)
                self._sequences[row * leaves : row * leaves + len(ids)] = ids
            if part.states is not None:
                self._state[start:end] = part.states
            start = end
        self._batch.n_tokens = start
        return self._batch

    def rows(self, rows: Rows, *, outputs: bool = False) -> Any:
        """A llama_batch of input rows instead of tokens, at the end of sequence 0: contiguous
        float32 [positions, input width], which must outlive it."""
        self._output[: len(rows)] = [outputs] * len(rows)
        return llama_cpp.llama_batch(
            n_tokens=len(rows),
            embd=_pointer(rows, ctypes.c_float),
            logits=self._batch.logits,
        )


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
