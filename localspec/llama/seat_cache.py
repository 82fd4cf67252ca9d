from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from localspec.decoding.sampling import Rows
from localspec.decoding.tree import TokenTree
from localspec.errors import UsageError
from localspec.llama.context import Context
from localspec.llama.context_params import MAX_TREE
from localspec.llama.hidden import HiddenStates
from localspec.llama.sequences import GrownTree
from localspec.llama.shared_context import PassPart, SharedContext

Passes: TypeAlias = Callable[[PassPart], tuple[Rows, float]]
"""Decodes a part, perhaps in a pass with others; its rows, valid until the next pass, and its share
of the seconds."""


class SeatCache(Context):
    """One answer's `Context` over a lot of sequence ids of a `SharedContext`.

    Passes are made by whoever serves all answers (`passes`), prompts in chunks of up to `chunk`
    tokens. Of hidden states there are layer inputs only.

    Attributes:
        capacity: most tokens; the scheduler may change it.
        common: another text with the same first tokens, and how many.
    """

    def __init__(
        self,
        shared: SharedContext,
        number: int,
        passes: Passes,
        chunk: Callable[[], int],
    ) -> None:
        # Not that of a context: there is nothing native to make.
        self.model = shared.model
        self.shared = shared
        self.tokens = []
        self.common: tuple[object, int] = None, 0
        self.native_seconds = 0.0
        self.watch = None
        self.capacity = shared.capacity
        self.recurrent = self.restores = False
        self.max_leaves = shared.leaves
        self.max_draft = MAX_TREE
        self.lot = shared.lot(number)
        self._sequences = self.lot
        self._grown = GrownTree()
        self._leaves = [], 1
        self._gives_hidden = False
        self._hidden = self._inputs = _Inputs(shared)
        self._snapshots = self._undoable = 0
        self._batch = _Parts(self)  # type: ignore[assignment]
        self._passes = passes
        self._chunk = chunk

    def close(self) -> None:
        """Nothing: the cells belong to the shared context."""

    def cancel(self) -> None:
        self.shared.cancel()

    def resume(self) -> None:
        self.shared.resume()

    def set_threads(self, count: int) -> None:
        self.shared.set_threads(count)

    @property
    def held(self) -> int:
        """Cells of its tokens, shared ones too, and of a tree."""
        return len(self.tokens) + len(self._grown)

    def begin_with(self, source: int, tokens: Sequence[int], text: object = None) -> None:
        """Take over the first tokens of another sequence, which belongs to a text; this one is
        empty."""
        assert not self.tokens, "it holds another text"
        if tokens:
            self.shared.share(source, self.lot.first, len(tokens))
            self.tokens += tokens
            self.common = text, len(tokens)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        text, shared = self.common
        self.common = text, min(shared, len(self.tokens))

    def checkpoint(self) -> None:
        """Nothing: attention can be cut anywhere."""

    def discard_branches(self) -> None:
        self._grown = GrownTree()
        self.lot.cut(len(self.tokens))

    def clear(self) -> None:
        self._grown = GrownTree()
        self.lot.cut(0)
        self.tokens.clear()
        self.common = None, 0

    def _most(self) -> int:
        return min(self._batch.capacity, self._chunk())

    def _decode(self, batch: PassPart, outputs: int) -> Rows:
        self._last_pass = len(batch.tokens)
        if self._inputs.wanted:
            self._inputs.latest = {}
            batch = batch._replace(inputs=self._inputs.latest)
        rows, seconds = self._passes(batch)
        self.native_seconds += seconds
        return rows


class _Inputs(HiddenStates):
    """Layer inputs of one answer; `latest`: of the last pass."""

    def __init__(self, shared: SharedContext) -> None:
        super().__init__(shared.model, None)
        self._shared = shared
        self.latest: dict[int, Rows] = {}

    @property
    def wanted(self) -> bool:
        return bool(self._layers)

    def want(self, layers: tuple[int, ...]) -> None:
        if self._model.layers in layers:
            raise UsageError(
                "A drafter that reads the last hidden state cannot serve answers in parallel. "
                "Open the model with parallel=1, or choose another drafter."
            )
        self._shared.want_inputs(layers)
        self._layers, self._tapped = layers, set(layers)

    def tapped(self, first: int, count: int) -> dict[int, Rows]:
        return {layer: self.latest[layer][first : first + count] for layer in self._layers}


class _Parts:
    def __init__(self, cache: SeatCache) -> None:
        self._cache = cache
        self.capacity = cache.shared.batch

    def chain(self, tokens: Sequence[int], outputs: int) -> PassPart:
        held = len(self._cache.tokens)
        return PassPart(
            tokens, range(held, held + len(tokens)), ((self._cache.lot.first,),), outputs
        )

    def tree(
        self, pending: Sequence[int], tree: TokenTree, start: int, leaves: list[list[int]]
    ) -> PassPart:
        first = self._cache.lot.first
        behind = start + len(pending) - 1
        everyone = range(first, first + 1 + max(numbers[-1] for numbers in leaves))
        return PassPart(
            [*pending, *tree.tokens],
            [*range(start, start + len(pending)), *(behind + depth for depth in tree.depths)],
            [*[everyone] * len(pending), *([first + n for n in below] for below in leaves)],
            1 + len(tree),
        )

    def nodes(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int]
    ) -> PassPart:
        first = self._cache.lot.first
        ids = [(first + number,) for number in sequences]
        return PassPart(tokens, positions, ids, len(tokens))
