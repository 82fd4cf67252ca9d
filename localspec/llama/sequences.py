"""Sequence ids over one unified KV cache, and their states as bytes.

A token may belong to several sequences and attends to earlier tokens of these. Each branch of a
tree is a sequence that shares the cells up to its branching point.
"""

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.errors import NativeError
from localspec.llama import kernels


def locked_function(name: str, result: Any, *arguments: Any) -> Any:
    """A native function that keeps the interpreter lock, as releasing it can cost milliseconds."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, llama_cpp.llama_cpp._lib))


sequence_remove = locked_function(
    "llama_memory_seq_rm", ctypes.c_bool, ctypes.c_void_p, *[ctypes.c_int32] * 3
)
sequence_copy = locked_function("llama_memory_seq_cp", None, ctypes.c_void_p, *[ctypes.c_int32] * 4)


class Sequences:
    """The sequences of one text, by number: 0 has the committed tokens, the others branch off it.

    A used number still shares the committed tokens, so its next branch adds only new ones.
    `first`: the id of number 0.
    """

    def __init__(self, memory: Any, count: int, first: int = 0) -> None:
        self.first, self.count = first, count
        self._memory = memory
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

    def keep(self, winner: int, held: int, kept: int) -> None:
        """Commit a branch of the tree after `held` tokens: number 0 continues with the sequence
        `winner`, up to `kept` tokens."""
        if winner:
            self.remove(0, held)
            sequence_copy(self._memory, self.first + winner, self.first, held, kept)
        self.cut(kept)

    def remove(self, number: int, start: int) -> bool:
        """Remove tokens from position `start` on; False if a recurrent memory cannot do that."""
        return bool(sequence_remove(self._memory, self.first + number, start, -1))

    def cut(self, length: int) -> None:
        """Drop everything after the first `length` tokens, and all branches."""
        self.remove(0, length)
        for number in range(1, self.count if max(self._shared) > length else self._open):
            if number < self._open or self._shared[number] > length:
                self._shared[number] = min(self._shared[number], length)
                self.remove(number, self._shared[number])
        self._open = 1


State = npt.NDArray[np.uint8]
_BYTES = ctypes.POINTER(ctypes.c_uint8)

INTERVAL = 8
"""Tokens between saved states; restoring one rereads at most this many."""
MAX_SAVED = 8
"""Maximum saved states. Copying one can take as long as a pass, and some megabytes."""

# Only the recurrent part of a memory: attention can be truncated without a state.
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def copy_state(context: Any, sequence: int, flags: int = 0) -> State:
    """A copy of a sequence's memory; a NativeError or MemoryError if there is none."""
    size = int(llama_cpp.llama_state_seq_get_size_ext(context, sequence, flags))
    state = np.empty(size, np.uint8)
    to = state.ctypes.data_as(_BYTES)
    got = llama_cpp.llama_state_seq_get_data_ext(context, to, size, sequence, flags)
    if not size or got != size:
        raise NativeError("llama.cpp does not provide the memory of this model.")
    return state


def restore_state(context: Any, state: State, sequence: int, flags: int = 0) -> bool:
    """Restore a state from `copy_state`; if it does not fit, return False and leave the sequence
    empty."""
    data = state.ctypes.data_as(_BYTES)
    with kernels.restoring(None if flags else positions(state)):
        read = llama_cpp.llama_state_seq_set_data_ext(context, data, state.size, sequence, flags)
    return int(read) == state.size


class SavedStates:
    """Past states of a llama_context's recurrent memory, by number of tokens."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._states: list[tuple[int, State]] = []
        self._due = True

    def due(self, length: int) -> bool:
        """Whether a state is worth saving: the first after a cut, then one per INTERVAL tokens."""
        if not self._states:
            return True
        last = self._states[-1][0]
        return length > last and (self._due or length - last >= INTERVAL)

    def save(self, length: int) -> None:
        with suppress(NativeError):
            state = copy_state(self._context, 0, _PARTIAL)
            del self._states[: len(self._states) + 1 - MAX_SAVED]
            self._states.append((length, state))
            self._due = False

    def cut(self, length: int) -> None:
        """Drop states of more than `length` tokens, and all but the latest two."""
        self._states = [state for state in self._states if state[0] <= length][-2:]
        self._due = True

    def forget(self) -> None:
        self._states.clear()

    def restore(self, length: int) -> int | None:
        """Restore the latest state of at most `length` tokens; its token count, None if missing."""
        self.cut(length)
        if not self._states:
            return None
        held, state = self._states[-1]
        return held if restore_state(self._context, state, 0, _PARTIAL) else None


def positions(state: State) -> npt.NDArray[np.int32] | None:
    """Positions of a state's cells, int32 [cells], in its order; None if it has no such cells.

    Layout (llama-context.cpp `state_seq_get_data`, llama-kv-cache.cpp `state_write`): a magic
    number, the sequence, the count of streams (one, as caches are unified) and of cells; for each
    cell its position, the count of its sequences, an extension for positions of several dimensions,
    and the sequences; keys and values. A window's cache, which has the same cells, comes second.
    """
    numbers = state[: state.size // 4 * 4].view(np.int32)
    if numbers.size < 4 or numbers[2] != 1:
        return None
    sequence, cells = int(numbers[1]), int(numbers[3])
    for width in (3, 6):
        table = numbers[4 : 4 + width * cells]
        if 0 < width * cells == table.size:
            table = table.reshape(cells, width)
            if (table[:, 1] == 1).all() and (table[:, -1] == sequence).all():
                found: npt.NDArray[np.int32] = table[:, 0].copy()
                return found
    return None


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, by bisection, as slices are compared in C."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
