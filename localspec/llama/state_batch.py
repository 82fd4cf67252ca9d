"""llama.cpp batches of tokens that go in with a state, as trained heads read them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.decoding.sampling import Rows


class StateBatch:
    """A llama_batch of tokens with a state each, over arrays that are used again.

    Args:
        width: numbers of a state.
        capacity: most tokens.
    """

    def __init__(self, width: int, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._state = np.zeros((capacity, width), np.float32)
        self._position = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._sequence = np.zeros(capacity, np.int32)
        self._output = np.zeros(capacity, np.int8)
        stride = self._sequence.strides[0]
        # llama.cpp wants a table of pointers, one to each token's sequence ids.
        self._table = self._sequence.ctypes.data + stride * np.arange(capacity, dtype=np.uintp)
        self._batch = llama_cpp.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, ctypes.c_int32),
            embd=_pointer(self._state, ctypes.c_float),
            pos=_pointer(self._position, ctypes.c_int32),
            n_seq_id=_pointer(self._count, ctypes.c_int32),
            seq_id=_pointer(self._table, ctypes.POINTER(ctypes.c_int32)),
            logits=_pointer(self._output, ctypes.c_int8),
        )

    def fill(
        self,
        tokens: Sequence[int],
        states: Rows,
        positions: Sequence[int],
        sequences: Sequence[int],
        outputs: int,
    ) -> Any:
        """The batch; logits after all of its tokens if `outputs` are wanted, else after none: the
        graph of a head does not pick rows, so that llama.cpp would give those of the first ones."""
        n = len(tokens)
        self._token[:n] = tokens
        self._state[:n] = states
        self._position[:n] = positions
        self._sequence[:n] = sequences
        self._output[:n] = outputs > 0
        self._batch.n_tokens = n
        return self._batch

    def states(self, rows: Rows) -> Any:
        """A batch of rows without tokens, all of them outputs, at the places behind what the cache
        holds; it is valid as long as the rows are."""
        self._output[: len(rows)] = 1
        return llama_cpp.llama_batch(
            n_tokens=len(rows),
            embd=_pointer(rows, ctypes.c_float),
            logits=_pointer(self._output, ctypes.c_int8),
        )


def _pointer(array: npt.NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
