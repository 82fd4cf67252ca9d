"""The memory of one sequence as bytes: for another context of the same model, or for going back."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from localspec.errors import NativeError
from localspec.llama import kernels
from localspec.llama.state_positions import positions

State = npt.NDArray[np.uint8]
_BYTES = ctypes.POINTER(ctypes.c_uint8)

APART = 8
"""Tokens between two saved states of one draft; going back reads at most so many again."""
MOST = 8
"""States that are saved. One may take as long to copy as a pass takes, and some megabytes."""

# Of a memory that is recurrent in part, only that part: attention can be cut back by itself.
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


def copied(context: Any, sequence: int = 0) -> State:
    """A copy of what the memory of a llama_context holds of a sequence; a NativeError where
    llama.cpp cannot give it out, a MemoryError where there is no room."""
    size = int(llama_cpp.llama_state_seq_get_size(context, sequence))
    state = np.empty(size, np.uint8)
    got = llama_cpp.llama_state_seq_get_data(context, state.ctypes.data_as(_BYTES), size, sequence)
    if not size or got != size:
        raise NativeError("llama.cpp does not give out the memory of this model.")
    return state


def put(context: Any, state: State, sequence: int = 0) -> bool:
    """Have a sequence hold what `copied` gave; False where it does not fit, and holds nothing."""
    with kernels.restoring(positions(state)):
        read = llama_cpp.llama_state_seq_set_data(
            context, state.ctypes.data_as(_BYTES), state.size, sequence
        )
    return int(read) == state.size


class SavedStates:
    """What the recurrent memory of a llama_context was after so many tokens, for some such numbers,
    so that there is a way back to them."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._states: list[tuple[int, Any]] = []
        self._due = True

    def due(self, length: int) -> bool:
        """Whether a state of these tokens is worth saving. The first one since the text was cut
        back is: what comes now is the next draft."""
        if not self._states:
            return True
        last = self._states[-1][0]
        return length > last and (self._due or length - last >= APART)

    def save(self, length: int) -> None:
        """Save the present state, which is that of so many tokens."""
        size = llama_cpp.llama_state_seq_get_size_ext(self._context, 0, _PARTIAL)
        state = (ctypes.c_uint8 * size)()
        copied = llama_cpp.llama_state_seq_get_data_ext(self._context, state, size, 0, _PARTIAL)
        if copied == size:
            del self._states[: len(self._states) + 1 - MOST]
            self._states.append((length, state))
            self._due = False

    def cut(self, length: int) -> None:
        """Forget the states of more tokens, as these are about to be dropped, and old ones."""
        self._states = [one for one in self._states if one[0] <= length][-2:]
        self._due = True

    def forget(self) -> None:
        self._states.clear()

    def restore(self, length: int) -> int | None:
        """Put the memory back to a state of at most so many tokens; returns how many it is of, None
        where there is none."""
        self.cut(length)
        if not self._states:
            return None
        held, state = self._states[-1]
        read = llama_cpp.llama_state_seq_set_data_ext(self._context, state, len(state), 0, _PARTIAL)
        return held if read else None
