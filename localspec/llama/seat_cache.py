from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from localspec.decoding.sampling import Rows
from localspec.errors import UsageError
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.hidden import HiddenStates
from localspec.llama.shared_context import SharedContext

Passes: TypeAlias = Callable[[PassPart], tuple[Rows, float]]
"""Decodes a part, perhaps beside others; its rows, and its share of the seconds."""


class SeatCache(Context):
    """One answer's `Context` over a lot of sequence ids of a `SharedContext`.

    `passes` makes its passes, prompts in chunks of up to `chunk` tokens. Of hidden states there are
    layer inputs only. The scheduler may change `capacity`. `common`: another text with the same
    first tokens, and how many.
    """

    def __init__(
        self,
        shared: SharedContext,
        number: int,
        passes: Passes,
        chunk: Callable[[], int],
    ) -> None:
        # Not that of a context: there is nothing native to make.
        self._inputs = _Inputs(shared)
        self._set_up(shared, shared.lot(number), self._inputs)
        self.shared, self.lot, self.capacity = shared, self._sequences, shared.capacity
        self.common: tuple[object, int] = None, 0
        self._passes, self._chunk = passes, chunk

    def close(self) -> None:
        """Nothing: the cells belong to the shared context."""

    @property
    def held(self) -> int:
        """Cells of its tokens, shared ones too, and of a tree."""
        return len(self.tokens) + len(self._grown)

    def begin_with(self, source: int, tokens: Sequence[int], text: object = None) -> None:
        """Take over the first tokens of another sequence, which belongs to `text`; it is empty."""
        assert not self.tokens, "it holds another text"
        if tokens:
            self.shared.share(source, self.lot.first, len(tokens))
            self.tokens += tokens
            self.common = text, len(tokens)

    def truncate(self, length: int) -> None:
        super().truncate(length)
        text, shared = self.common
        self.common = text, min(shared, len(self.tokens))

    def clear(self) -> None:
        super().clear()
        self.common = None, 0

    def _most(self) -> int:
        return min(self.shared.batch, self._chunk())

    def _decode_part(self, part: PassPart) -> Rows:
        self._last_pass = len(part.tokens)
        if self._inputs.layers:
            self._inputs.latest = {}
            part = part._replace(inputs=self._inputs.latest)
        rows, seconds = self._passes(part)
        self.native_seconds += seconds
        return rows


class _Inputs(HiddenStates):
    """Layer inputs of one answer; `latest`: of the last pass."""

    def __init__(self, shared: SharedContext) -> None:
        super().__init__(shared.model, None)
        self._shared = shared
        self.latest: dict[int, Rows] = {}

    def want(self, layers: tuple[int, ...]) -> None:
        if self._model.layers in layers:
            raise UsageError(
                "A drafter that reads the last hidden state cannot serve answers in parallel. "
                "Open the model with parallel=1, or choose another drafter."
            )
        self._shared.want_inputs(layers)
        self.layers, self._tapped = layers, set(layers)

    def tapped(self, first: int, count: int) -> dict[int, Rows]:
        return {layer: self.latest[layer][first : first + count] for layer in self.layers}
