from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence

from localspec.decoding.sampling import Rows
from localspec.errors import NativeError
from localspec.llama import sequence_state
from localspec.llama.batch import Batch, PassPart
from localspec.llama.context_params import MAX_LEAVES, MAX_TREE, context_params
from localspec.llama.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.llama.native_context import CacheFull, NativeContext
from localspec.llama.options import ModelOptions
from localspec.llama.sequence_state import State
from localspec.llama.sequences import Sequences, sequence_copy, sequence_remove

BRANCH_IDS = 64
"""Sequence ids for all answers' branches; each reserves a row of logits."""
KEPT_IDS = 16
"""Sequence ids for kept texts, at least two per answer."""
ROWS_EACH = 4
"""Rows of logits beyond one tree, per answer."""


class SharedContext(NativeContext):
    """One KV cache for several answers, in shared passes.

    Each answer has a lot of sequence ids, for its text and branches; ids for kept texts follow.
    Nothing may touch it while a pass runs. A NativeError without room, or for recurrent memory.

    Attributes:
        answers: count of lots; `leaves` sequence ids of each.
        capacity: most tokens of an answer, prompt included. There are `cells` times as many, for
            all texts together, shared tokens counted once.
        batch: most tokens of a pass; `rows` the most rows of logits.
    """

    def __init__(self, model: Model, options: ModelOptions, *, cells: int = 1) -> None:
        if model.recurrent:
            raise NativeError(
                f"{model.path.name} has a recurrent memory, which cannot serve answers in parallel."
            )
        self.answers = answers = options.parallel
        self.leaves = max(2, min(MAX_LEAVES, BRANCH_IDS // answers))
        self.kept = max(KEPT_IDS, 2 * answers)
        ids = answers * self.leaves + self.kept
        self.rows = max(ids, MAX_TREE + 1 + ROWS_EACH * answers)
        stop = ctypes.create_string_buffer(2)
        params = context_params(model, options, stop, sequences=ids, rows=self.rows)
        params.n_ctx *= cells
        super().__init__(model, params, stop, f"{int(params.n_ctx)} tokens for {answers} answers")
        self.capacity = min(self.cells // cells, options.context or self.cells // cells)
        self._filled = Batch(self.batch, self.leaves)
        self._taps = HiddenStates(model, self.handle)

    def want_inputs(self, layers: Iterable[int]) -> None:
        """Provide inputs of these layers too; a NativeError as for `Context.want_hidden`."""
        self._taps.want(tuple(sorted({*self._taps.layers, *layers})))

    def lot(self, number: int) -> Sequences:
        """The sequence ids of one answer."""
        return Sequences(self.memory, self.leaves, number * self.leaves)

    def kept_id(self, number: int) -> int:
        """The sequence id of a kept text, 0 … `kept` - 1."""
        return self.answers * self.leaves + number

    def share(self, source: int, destination: int, length: int) -> None:
        """Have a sequence begin with another's first tokens, without copying."""
        sequence_copy(self.memory, source, destination, 0, length)

    def drop(self, sequence: int) -> None:
        sequence_remove(self.memory, sequence, 0, -1)

    def decode(self, parts: Sequence[PassPart]) -> list[Rows]:
        """One pass over at most `batch` tokens and `rows` outputs. For each part float32 [outputs,
        vocabulary], views that the next pass overwrites. Raises as `NativeContext.run`."""
        address = self.run(self._filled.fill(parts))
        rows = self.logits(address, sum(part.outputs for part in parts))
        found, token, row = [], 0, 0
        for part in parts:
            if part.inputs is not None:
                part.inputs.update(self._taps.tapped(token, len(part.tokens)))
            found.append(rows[row : row + part.outputs])
            token, row = token + len(part.tokens), row + part.outputs
        return found

    def undo(self, parts: Sequence[PassPart]) -> None:
        """Drop what a failed pass may have read."""
        for part in parts:
            starts: dict[int, int] = {}
            ids = (
                part.sequences if len(part.sequences) > 1 else [*part.sequences] * len(part.tokens)
            )
            for position, sequences in zip(part.positions, ids, strict=True):
                for sequence in sequences:
                    starts[sequence] = min(position, starts.get(sequence, position))
            for sequence, start in starts.items():
                sequence_remove(self.memory, sequence, start, -1)


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
