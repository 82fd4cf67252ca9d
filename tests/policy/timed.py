"""A machine whose clock only passes move, and a target and caches whose passes take its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localspec.decoding.interfaces import PassRequest, PassResult
from localspec.decoding.sampling import Rows
from tests.support.toys import ToyCache, ToyModel, ToyTarget

OWN = 50e-6  # seconds of localspec's own between two looks at the clock
CAPACITY = 8192

Cost = Callable[[int], float]  # seconds of a pass over so many tokens, at present


class Clock:
    """Stands still but for passes, and a little each time it is looked at."""

    now = 0.0

    def __call__(self) -> float:
        self.now += OWN
        return self.now


class TimedTarget(ToyTarget):
    """One whose passes take time."""

    def __init__(self, model: ToyModel, clock: Clock, cost: Cost) -> None:
        super().__init__(model, capacity=CAPACITY)
        self._clock = clock
        self._cost = cost

    def forward(self, request: PassRequest) -> PassResult:
        spent = self._cost(len(request.context) - len(self.cache) + len(request.tree))
        self._clock.now += spent
        return PassResult(super().forward(request).rows, spent)


class TimedCache(ToyCache):
    """One whose passes take time as well."""

    def __init__(self, model: ToyModel, clock: Clock, cost: Cost) -> None:
        super().__init__(model, capacity=CAPACITY)
        self._clock = clock
        self._cost = cost

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        rows = super().extend(tokens, outputs)
        self._spend(len(tokens))
        return rows

    def _spend(self, tokens: int) -> None:
        spent = self._cost(tokens)
        self.native_seconds += spent - 1.0
        self._clock.now += spent
