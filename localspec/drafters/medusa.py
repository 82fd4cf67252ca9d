"""Medusa heads as a source (Cai et al. 2024): each predicts the token at one distance.

A head is a few residual blocks and a projection, computed in numpy on demand; one row serves all
candidates of a depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from localspec.decoding.sampling import Row, Rows
from localspec.drafters.trained_head import DepthHead

Matrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """The weights of Medusa heads. `blocks`: of each head, weight [width, width] and bias [width];
    `outputs`: of each head, [rows, width]; `ids`: the token of each row, None for all in order."""

    path: Path
    name: str
    size: int
    blocks: Sequence[Sequence[tuple[Matrix, Matrix | None]]]
    outputs: Sequence[Matrix]
    ids: npt.NDArray[np.int64] | None

    def logits(self, head: int, state: Row) -> Row:
        for weight, bias in self.blocks[head]:
            inner = weight @ state
            if bias is not None:
                inner += bias
            state = state + inner / (1.0 + np.exp(-np.clip(inner, -80.0, None)))
        found: Row = self.outputs[head] @ state
        return found

    def close(self) -> None:
        pass


_blas = cache(ThreadpoolController)
"""Cached, as finding the libraries takes milliseconds."""


class MedusaCache:
    """The heads' rows for one hidden state, used like the cache of a draft model. `place`: length
    of the text after which it can draft, -1 if no state is known; `native_seconds`: of computing
    rows so far."""

    recurrent = False
    max_draft = 64

    def __init__(self, weights: MedusaWeights, vocabulary: int, capacity: int) -> None:
        self.model, self.most = weights, len(weights.outputs)
        self.capacity = capacity
        self.tokens: list[int] = []
        self.place = -1
        self.native_seconds = 0.0
        self._state: Row = np.zeros(weights.outputs[0].shape[1], np.float32)
        self._rows: list[Row] = [np.full(vocabulary, -np.inf, np.float32) for _ in weights.outputs]
        self._computed: set[int] = set()

    def set_state(self, place: int, state: Row) -> None:
        self.place = place
        self._state = state
        self._computed.clear()

    def row(self, head: int) -> Row:
        """Logits of a token after the text, 0 for the next; valid until the next state."""
        row = self._rows[head]
        if head not in self._computed:
            started = perf_counter()
            # One thread, as OpenBLAS's other ones would spin for some 20 ms on cores that the
            # target's next pass needs.
            with _blas().limit(limits=1, user_api="blas"):
                found = self.model.logits(head, self._state)
            if self.model.ids is None:
                row[:] = found
            else:
                row[self.model.ids] = found
            self._computed.add(head)
            self.native_seconds += perf_counter() - started
        return row

    def knows(self, head: int) -> bool:
        return head in self._computed

    # For calibration: the cost of a row does not depend on the tokens read.

    def filler(self, count: int) -> list[int]:
        return [0] * count

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        self.tokens += tokens
        self._computed.clear()
        row = self.row(0)
        self._computed.clear()
        return np.broadcast_to(row, (outputs, len(row)))

    def truncate(self, length: int) -> None:
        del self.tokens[length:]

    def clear(self) -> None:
        self.tokens.clear()
        self.place = -1

    def ignore(self, *_: object) -> None:
        """Do nothing; only a context needs these calls."""

    checkpoint = close = cancel = resume = set_threads = ignore


class Medusa(DepthHead):
    """Medusa heads that follow a session; `layers`: number of the target's layers."""

    cache: MedusaCache

    def __init__(self, cache: MedusaCache, layers: int, vocabulary: int) -> None:
        super().__init__(cache, (layers,), vocabulary, "medusa")

    def begin(self, prompt: Sequence[int]) -> None:
        self.cache.clear()

    def drop_drafted(self) -> None:
        self.cache.clear()  # a state is valid at one position only

    def take(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self.cache.set_state(len(context), hidden[self.layers[0]][-1])

    def knows(self, path: list[int]) -> bool:
        return self.cache.knows(len(path))

    def row(self, path: list[int]) -> Row:
        return self.cache.row(len(path))
