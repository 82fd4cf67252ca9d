"""The memory of one sequence as bytes, to be put into another context of the same model."""

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


def copied(context: Any, sequence: int = 0) -> State:
    """A copy of what the memory of a llama_context holds of a sequence.

    Raises:
        NativeError: llama.cpp cannot give it out.
        MemoryError: there is no room for the copy.
    """
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
