"""States of a recurrent memory, saved so that there is a way back to them."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp

APART = 8
"""Tokens between two states of one draft; going back reads at most so many again, in one pass."""
MOST = 8
"""States that are kept. One may take as long to copy as a pass takes, and some megabytes."""

# Of a memory that is recurrent in part, only that part: attention can be cut back by itself.
_PARTIAL = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class SavedStates:
    """What the memory of a context was after so many tokens, for some such numbers."""

    def __init__(self, context: Any) -> None:
        """`context`: a llama_context."""
        self._context = context
        self._states: list[tuple[int, Any]] = []
        self._due = True

    def due(self, length: int) -> bool:
        """Whether a state of these tokens is worth saving, so that a draft behind can be dropped.

        The first one since the text was cut back is: what comes now is the next draft.
        """
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
        """Forget all."""
        self._states.clear()

    def restore(self, length: int) -> int | None:
        """Put the memory's recurrent part back to a state of at most so many tokens.

        Returns:
            How many tokens it is of; None where there is none.
        """
        self.cut(length)
        if not self._states:
            return None
        held, state = self._states[-1]
        read = llama_cpp.llama_state_seq_set_data_ext(self._context, state, len(state), 0, _PARTIAL)
        return held if read else None
