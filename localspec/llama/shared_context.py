import ctypes
from collections.abc import Sequence

from localspec.decoding.sampling import Rows
from localspec.errors import NativeError
from localspec.llama.batch import Batch, PassPart
from localspec.llama.hidden import HiddenStates
from localspec.llama.model import Model
from localspec.llama.native_context import NativeContext
from localspec.llama.options import MAX_LEAVES, MAX_TREE, ModelOptions
from localspec.llama.sequences import Sequences, sequence_copy, sequence_remove

BRANCH_IDS = 64
"""Sequence ids for the branches of all answers; each reserves a row of logits."""
KEPT_IDS = 16
"""Sequence ids for kept texts, at least two per answer."""
ROWS_EACH = 4
"""Rows of logits beyond one tree, per answer."""


class SharedContext(NativeContext):
    """One KV cache for `options.parallel` answers, in shared passes of up to `rows` rows of logits.

    Each answer has `leaves` sequence ids, for its text and branches; ids for `kept` texts follow.
    Not thread-safe: nothing may use it while a pass runs. A NativeError without enough memory, or
    for several answers over recurrent memory. `flag`: two characters that outlive the context, set
    by `cancel`. `capacity`: most tokens of an answer, prompt included. All texts share that many
    cells, counting common tokens once; with `each`, every answer has that many.
    """

    def __init__(
        self,
        model: Model,
        options: ModelOptions,
        *,
        each: bool = False,
        flag: ctypes.Array[ctypes.c_char] | None = None,
    ) -> None:
        self.answers = answers = options.parallel
        several = answers > 1
        if several and model.recurrent:
            raise NativeError(
                f"{model.path.name} has a recurrent memory, which cannot serve answers in parallel."
            )
        self.leaves = 1 if model.recurrent else max(2, min(MAX_LEAVES, BRANCH_IDS // answers))
        self.kept = max(KEPT_IDS, 2 * answers) if several else 0
        ids = answers * self.leaves + self.kept
        self.rows = max(ids, MAX_TREE + 1 + (ROWS_EACH * answers if several else 0))
        caches = answers if each else 1
        tokens = caches * options.context_for(model.trained_context)
        super().__init__(model, options, rows=self.rows, sequences=ids, flag=flag, n_ctx=tokens)
        # llama.cpp may round the number of cells up.
        self.capacity = min(self.cells // caches, options.context or self.cells // caches)
        try:
            self.filled = Batch(self.batch, self.leaves)
            self.hidden = HiddenStates(model, self.handle)
        except BaseException:
            self.close()
            raise

    def answer_sequences(self, number: int) -> Sequences:
        first = number * self.leaves if self.answers > 1 else None
        return Sequences(self.memory, self.leaves, first)

    def kept_sequences(self, number: int) -> Sequences:
        """The sequence id of a kept text, 0 … `kept` - 1."""
        return Sequences(self.memory, 1, self.answers * self.leaves + number)

    def share(self, source: int, destination: int, length: int) -> None:
        """Make a sequence start with another's first tokens, without copying."""
        sequence_copy(self.memory, source, destination, 0, length)

    def drop(self, sequence: int) -> None:
        sequence_remove(self.memory, sequence, 0, -1)

    def decode(self, parts: Sequence[PassPart]) -> list[Rows]:
        """Run a pass over at most `batch` tokens and `rows` outputs. For each part float32
        [outputs, vocabulary], views that the next pass overwrites. Raises as `run`."""
        address = self.run(self.filled.fill(parts))
        rows = self.logits(address, sum(part.outputs for part in parts))
        results, token, row = [], 0, 0
        for part in parts:
            if part.inputs is not None:
                part.inputs.update(self.hidden.rows(token, len(part.tokens)))
            results.append(rows[row : row + part.outputs])
            token, row = token + len(part.tokens), row + part.outputs
        return results

    def undo(self, parts: Sequence[PassPart]) -> None:
        """Drop tokens that a failed pass may have added."""
        for part in parts:
            for sequence in part.sequences[0]:  # the first token is in all of its sequences
                sequence_remove(self.memory, sequence, part.positions[0], -1)
