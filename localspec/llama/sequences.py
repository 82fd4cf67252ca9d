"""Sequence ids over one unified KV cache.

A token may belong to several sequences and attends to earlier tokens of these. Each branch of a
tree is a sequence that shares the cells up to its branching point.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp


def locked_function(name: str, result: Any, *arguments: Any) -> Any:
    """A native function that keeps the interpreter lock, as releasing it can cost milliseconds."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, llama_cpp.llama_cpp._lib))


sequence_remove = locked_function(
    "llama_memory_seq_rm", ctypes.c_bool, ctypes.c_void_p, *[ctypes.c_int32] * 3
)
sequence_copy = locked_function("llama_memory_seq_cp", None, ctypes.c_void_p, *[ctypes.c_int32] * 4)


class Sequences:
    """The sequences of one text, by number: 0 has the committed tokens, others branch from it.

    A used number keeps sharing the committed tokens, so its next branch adds only new ones.
    `first`: the id of number 0 if other texts share the memory, otherwise None.
    """

    def __init__(self, memory: Any, count: int, first: int | None = None) -> None:
        self.first, self.count = first or 0, count
        self._memory, self._exclusive = memory, first is None
        # By number: how many cells of number 0 it shares.
        self._shared = [0] * count
        self._open = 1  # numbers below this one may have cells after the committed tokens

    def share(self, number: int, length: int) -> None:
        """Share the first `length` tokens of number 0 with a sequence."""
        self._open = max(self._open, number + 1)
        if self._shared[number] < length:
            first = self.first
            sequence_copy(self._memory, first, first + number, self._shared[number], length)
            self._shared[number] = length

    def keep(self, winner: int, held: int, kept: int, used: int) -> None:
        """Commit a branch of the tree after `held` tokens: number 0 continues with the sequence
        `winner`, up to `kept` tokens. The tree used sequences below `used`."""
        if kept == held:  # no branch is kept: one search through the cells may be enough
            self.cut(held)
            return
        if winner:
            self.remove(0, held)
            sequence_copy(self._memory, self.first + winner, self.first, held, kept)
        else:
            self.remove(0, kept)
        for number in range(1, used):
            self.remove(number, self._shared[number])
        self._open = 1

    def remove(self, number: int, start: int) -> bool:
        """Remove tokens from position `start` on; False if a recurrent memory cannot go back."""
        return bool(sequence_remove(self._memory, self.first + number, start, -1))

    def cut(self, length: int) -> None:
        """Drop everything after the first `length` tokens."""
        if self._exclusive:
            sequence_remove(self._memory, -1, length, -1)
        else:
            for number, shared in enumerate(self._shared):
                if number < self._open or shared > length:
                    self.remove(number, length)
        self._open = 1
        self._shared = [min(shared, length) for shared in self._shared]

    def clear(self) -> None:
        if self._exclusive:
            llama_cpp.llama_memory_clear(self._memory, False)
            self._shared = [0] * self.count
        else:
            self.cut(0)
