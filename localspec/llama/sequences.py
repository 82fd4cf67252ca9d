"""Sequence ids over the cells of one KV cache: the committed tokens, and branches behind them.

A token of a unified cache may belong to several sequences, and sees the earlier tokens of its own.
So each branch of a tree is a sequence of its own that shares the cells up to where it parts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp

from localspec.decoding.tree import ROOT


def quick(name: str, result: Any, *arguments: Any) -> Any:
    """A native function that is over in a microsecond, called without giving up the lock.

    Giving it up would let a busy screen thread in, which keeps it for milliseconds.
    """
    return ctypes.PYFUNCTYPE(result, *arguments)((name, llama_cpp.llama_cpp._lib))


sequence_remove = quick(
    "llama_memory_seq_rm",
    ctypes.c_bool,
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
)


class Sequences:
    """The sequences of one cache: 0 holds the committed tokens, the others branch from it.

    An id that was used for a branch goes on sharing the committed tokens, so that the next branch
    with that id adds only what is new.

    Args:
        memory: a llama_memory_t.
        count: how many ids there are.
    """

    def __init__(self, memory: Any, count: int) -> None:
        self._memory = memory
        # How far each further id shares the cells of sequence 0.
        self._shared = [0] * count
        self._most_shared = 0

    def share(self, sequence: int, length: int) -> None:
        """Have a further sequence hold the first `length` tokens of sequence 0."""
        if self._shared[sequence] < length:
            self.copy(0, sequence, self._shared[sequence], length)
            self._shared[sequence] = self._most_shared = length

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        """Have a sequence share the tokens of another one from position `start` to `end`."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, destination, start, end)

    def keep(self, winner: int, held: int, kept: int, used: int) -> None:
        """End a tree behind `held` tokens: one branch becomes the end of sequence 0.

        Args:
            winner: the branch's sequence.
            kept: tokens that sequence 0 has afterwards, the rest of the branch is dropped.
            used: sequences that the tree used, 0 included; all of them below this number.
        """
        if kept == held:  # nothing of any branch: one search through the cells is enough
            self.remove(-1, held)
            return
        if winner:
            self.remove(0, held)
            self.copy(winner, 0, held, kept)
        else:
            self.remove(0, kept)
        for sequence in range(1, used):
            self.remove(sequence, self._shared[sequence])

    def remove(self, sequence: int, start: int) -> bool:
        """Take the tokens from position `start` on out of a sequence (-1: of all of them).

        False where the memory is recurrent and cannot go back there.
        """
        return bool(sequence_remove(self._memory, sequence, start, -1))

    def cut(self, length: int) -> None:
        """Drop everything behind the first `length` tokens, branches included."""
        sequence_remove(self._memory, -1, length, -1)
        if self._most_shared > length:
            self.forget(length)

    def forget(self, length: int) -> None:
        """Take note that nothing behind `length` is left."""
        if self._most_shared > length:
            self._shared = [min(shared, length) for shared in self._shared]
            self._most_shared = length


class GrownTree:
    """Which sequence each node of a tree is in that grows behind the committed tokens.

    A node's first child goes on in its sequence. Each further child begins a new one.

    Attributes:
        tokens: token of each node.
        sequences: the sequence it was decoded in; the branch down to it is in that one.
        depths: 1 for a node that hangs from the committed tokens, and so on.
        leaves: sequences in use.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.sequences: list[int] = []
        self.depths: list[int] = []
        self.leaves = 1
        self._parents: list[int] = []
        self._continued: set[int] = set()

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int) -> tuple[int, int] | None:
        """Append a node.

        Returns:
            Where it begins a new sequence: the sequence of its parent, and how many nodes of that
            one it shares; else None.
        """
        depth, source = 0, 0
        if parent != ROOT:
            depth, source = self.depths[parent], self.sequences[parent]
        parts = parent in self._continued
        self._continued.add(parent)
        self.tokens.append(token)
        self._parents.append(parent)
        self.depths.append(depth + 1)
        self.sequences.append(self.leaves if parts else source)
        if not parts:
            return None
        self.leaves += 1
        return source, depth

    def leaves_with(self, parents: Sequence[int]) -> int:
        """Sequences in use once nodes hang from these as well."""
        fresh = len(set(parents) - self._continued)
        return self.leaves + len(parents) - fresh

    def is_path(self, nodes: Sequence[int]) -> bool:
        """Whether each of these hangs from the one before, the first one from the root."""
        return [self._parents[node] for node in nodes] == [ROOT, *nodes[:-1]][: len(nodes)]
