"""llama.cpp batches over numpy arrays, filled without a loop over ctypes fields."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree


class Batch:
    """Reusable arrays for passes of up to `capacity` tokens, in up to `leaves` sequences each.

    `width`: of the state that goes in with each token, for trained heads.
    """

    def __init__(self, capacity: int, leaves: int, width: int = 0) -> None:
        self.capacity = capacity
        self._token = np.zeros(capacity, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._count = np.ones(capacity, np.int32)
        self._sequences = np.zeros((capacity, leaves), np.int32)
        self._output = np.zeros(capacity, np.int8)
        self._all = np.ones(capacity, np.int8)
        self._state = np.zeros((capacity, width), np.float32)
        # llama.cpp wants a table of pointers, one to each token's sequence ids.
        stride = self._sequences.strides[0]
        self._table = self._sequences.ctypes.data + stride * np.arange(capacity, dtype=np.uintp)

        # The same memory: what comes as a list is written there in a third of the time.
        numbers: Any = ctypes.c_int32 * capacity  # whose types say that it takes lists alone
        self._tokens = numbers.from_buffer(self._token)
        self._positions = numbers.from_buffer(self._position)

        token = _pointer(self._token, ctypes.c_int32)
        self._some_outputs = _pointer(self._output, ctypes.c_int8)
        self._all_outputs = _pointer(self._all, ctypes.c_int8)
        # Without positions and sequence ids llama.cpp continues sequence 0, and without a list of
        # outputs it gives the last token's: a chain needs nothing filled but its tokens.
        self._chain = llama_cpp.llama_batch(n_tokens=0, token=token)
        self._single = llama_cpp.llama_batch(n_tokens=1, token=token)
        self._tree = llama_cpp.llama_batch(
            n_tokens=0,
            token=token,
            embd=_pointer(self._state, ctypes.c_float) if width else None,
            pos=_pointer(self._position, ctypes.c_int32),
            n_seq_id=_pointer(self._count, ctypes.c_int32),
            seq_id=_pointer(self._table, ctypes.POINTER(ctypes.c_int32)),
            logits=self._some_outputs,
        )

    def chain(self, tokens: Sequence[int], outputs: int) -> Any:
        """Tokens that continue sequence 0, with logits for the last `outputs`."""
        n = len(tokens)
        if n == outputs == 1:
            self._tokens[0] = tokens[0]
            return self._single
        batch = self._chain
        batch.n_tokens = n
        self._tokens[:n] = tokens
        if outputs == 1:
            batch.logits = None
        elif outputs == n:
            batch.logits = self._all_outputs
        else:
            self._output[: n - outputs] = 0
            self._output[n - outputs : n] = 1
            batch.logits = self._some_outputs
        return batch

    def tree(
        self, pending: Sequence[int], tree: TokenTree, start: int, leaves: list[list[int]]
    ) -> Any:
        """Pending tokens and a tree, with logits from the last pending token on.

        Args:
            pending: tokens that all branches share, from position `start` on.
            leaves: for each node the sequence ids of the leaves below it.
        """
        first, n = len(pending), len(pending) + len(tree)
        everyone = range(1 + max(numbers[-1] for numbers in leaves))
        self._tokens[:n] = [*pending, *tree.tokens]
        behind = start + first - 1
        depths = [behind + depth for depth in tree.depths]
        self._positions[:n] = [*range(start, start + first), *depths]
        self._output[: first - 1] = 0
        self._output[first - 1 : n] = 1
        self._count[:n] = [*([len(everyone)] * first), *map(len, leaves)]
        self._sequences[:first, : len(everyone)] = everyone
        for row, numbers in enumerate(leaves, first):
            self._sequences[row, : len(numbers)] = numbers
        self._tree.n_tokens = n
        return self._tree

    def nodes(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[int],
        states: Rows | None = None,
        *,
        outputs: bool = True,
    ) -> Any:
        """Tokens of one sequence each, with logits for all or none; `states`: float32 [tokens,
        width]."""
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        self._count[:n] = 1
        self._sequences[:n, 0] = sequences
        self._output[:n] = outputs
        if states is not None:
            self._state[:n] = states
        self._tree.n_tokens = n
        return self._tree

    def rows(self, rows: Rows, *, outputs: bool = False) -> Any:
        """Rows in place of tokens behind sequence 0: contiguous float32 [positions, input width].
        They must outlive the batch."""
        self._output[: len(rows)] = outputs
        return llama_cpp.llama_batch(
            n_tokens=len(rows),
            embd=_pointer(rows, ctypes.c_float),
            logits=self._some_outputs,
        )


def _pointer(array: np.ndarray[Any, Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
