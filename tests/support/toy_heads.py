"""Trained heads over toy models, whose hidden states are token ids."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.drafters.medusa import Medusa, MedusaCache, MedusaWeights
from localspec.drafters.trained_head import BlockHead, EagleHead, TrainedHead
from tests.support.toys import ToyCache, ToyModel

LAYERS = (4, 1, 6)  # inputs of the toy head, in this order


class ToyStates(ToyCache):
    """As `localspec.llama.head_caches.EagleCache`, with checks of the given states. `states_read`
    counts these."""

    beside: Sequence[object] = ()
    model: ToyModel

    def __init__(self, model: ToyModel, *, capacity: int = 64) -> None:
        super().__init__(model, capacity=capacity)
        self.states_read = 0
        self._text: list[int] = []
        self._start = self._true = 0

    def close(self) -> None:
        """Nothing to free."""

    def begin(self, prompt: Sequence[int]) -> None:
        agreed = 0
        while agreed < min(len(self._text), len(prompt)) and self._text[agreed] == prompt[agreed]:
            agreed += 1
        del self._text[agreed:]

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        end = len(context) - 1
        first = end - len(inputs)
        # All layers of a token hold its id.
        states = inputs.reshape(len(inputs), len(LAYERS), self.model.size)
        assert (states.argmax(axis=2) == np.array(context[first:end])[:, None]).all(), "misplaced"
        assert self._text == list(context[: len(self._text)]), "another text"
        assert len(self.tokens) == self._true, "drafted tokens stayed"
        if first > len(self._text):
            self._start = first
            self.tokens[:] = context[: first + 1]
            self._true = first + 1
        self._text = list(context[:end])
        self.states_read += len(inputs)

    def read(self) -> None:
        """Nothing to do: states are read when they are given."""

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        held = len(self.tokens)
        unknown = held + len(tokens) - 1 - max(len(self._text), held - 1)
        assert unknown <= 1, "the state of a drafted token comes from the pass before"
        rows = super().extend(tokens, outputs)
        if self._true == held:  # a token needs the state of the one before
            self._true = max(held, min(len(self.tokens), len(self._text) + 1))
        return rows

    def truncate(self, length: int) -> None:
        super().truncate(length)
        self._true = min(self._true, len(self.tokens))

    def drop_drafted(self) -> None:
        self.truncate(self._true)


class ToyBlocks(ToyStates):
    """As `localspec.llama.head_caches.BlockCache`, with checks of the given states."""

    most = 8

    @property
    def place(self) -> int:
        return len(self._text) + 1 if len(self._text) > self._start else 0

    def feed(self, context: Sequence[int], inputs: Rows) -> None:
        super().feed(context, inputs)
        self.tokens[:] = self._text
        self._true = len(self.tokens)

    def draft(self, last: int, count: int) -> Rows:
        """Rows along the likeliest text."""
        self.native_seconds += 1.0
        text, rows = [*self._text, last], []
        for _ in range(min(count, self.most)):
            rows.append(self.model.logits([text])[0])
            text.append(int(rows[-1].argmax()))
        return np.stack(rows)


def toy_head(source: str, model: ToyModel) -> TrainedHead:
    """A head with a model's distributions; Medusa and blocks follow the likeliest text."""
    if source in ("dflash", "dspark"):
        blocks: Any = ToyBlocks(model, capacity=256)
        return BlockHead(blocks, LAYERS, model.size, source)
    if source in ("eagle", "mtp"):
        states: Any = ToyStates(model, capacity=256)
        return EagleHead(states, LAYERS, model.size, source)
    size = model.size
    best = [int(row.argmax()) for row in model.logits([[t] for t in range(size)])]
    outputs, text = [], best
    for _ in range(8):
        # The state is a token: column t of a head has the logits after the likeliest text from t.
        outputs.append(np.stack([model.logits([[t]])[0] for t in text], axis=1))
        text = [best[token] for token in text]
    weights = MedusaWeights(
        Path("toy"), "toy", 0, [()] * len(outputs), [np.maximum(o, -20) for o in outputs], None
    )
    return Medusa(MedusaCache(weights, size, 256), 9, size)
