from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.llama import sequence_state
from localspec.llama.native_context import CacheFull
from localspec.llama.sequence_state import State
from localspec.llama.shared_context import SharedContext


class KeptSequence:
    """A sequence of a `SharedContext` that belongs to no answer; `number`: 0 … `shared.kept` - 1.
    `make_room` frees cells; False if there are none to free."""

    def __init__(
        self, shared: SharedContext, number: int, make_room: Callable[[], bool] = lambda: False
    ) -> None:
        self._shared, self._make_room = shared, make_room
        self.id = shared.kept_id(number)
        self.tokens: list[int] = []

    @property
    def capacity(self) -> int:
        return self._shared.capacity

    def share(self, source: int, tokens: Sequence[int]) -> None:
        """Hold the first tokens of another sequence; no cell is copied."""
        self._shared.share(source, self.id, len(tokens))
        self.tokens = [*tokens]

    def state(self) -> State:
        return sequence_state.copied(self._shared.handle, self.id)

    def set_state(self, tokens: Sequence[int], state: State) -> None:
        """As `Context.set_state`; CacheFull if there are too few cells."""
        self.clear()
        while len(tokens) > self.capacity or not sequence_state.put(
            self._shared.handle, state, self.id
        ):
            self.clear()
            if len(tokens) > self.capacity or not self._make_room():
                raise CacheFull("There is no room for the memory of another session.")
        self.tokens = [*tokens]

    def clear(self) -> None:
        self._shared.drop(self.id)
        self.tokens = []
