"""Real models on a clock that only their passes move, by fixed costs.

Curves, paces and the budget then do not depend on the machine, and with a seed an answer is the
same in every run.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from localspec import Engine
from localspec.llama.batch import PassPart
from localspec.llama.native_context import NativeCache, SharedContext
from tests.policy.measuring import Clock
from tests.support import inside
from tests.support.sessions import make_drafts_cheap, target_seconds

DRAFT_SECONDS = 0.001  # of a pass of the draft model, over however many tokens


class SharedClock(Clock):
    """A clock for several threads: concurrent readings must not lose added time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            return super().__call__()

    def spend(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


def agree_on_time(engine: Engine) -> Clock:
    """Have an engine's passes take the costs of `make_drafts_cheap`, and other work no time."""
    clock = SharedClock()
    costs: tuple[Callable[[int], float], ...] = (target_seconds, lambda tokens: DRAFT_SECONDS)
    if engine.parallel > 1:
        inside.slots(engine).clock = clock
        for shared, cost in zip(inside.shared_contexts(engine), costs, strict=False):
            _shared_passes_take(shared, clock, cost)
    else:
        for context, cost in zip(inside.contexts(engine), costs, strict=False):
            if isinstance(context, NativeCache):  # Medusa's has no passes
                _passes_take(context, clock, cost)
    make_drafts_cheap(engine, draft=DRAFT_SECONDS)
    return clock


def _passes_take(context: NativeCache, clock: SharedClock, cost: Callable[[int], float]) -> None:
    decode = context._decode

    def timed(batch: Any, outputs: int) -> Any:
        before, spent = context.native_seconds, cost(int(batch.n_tokens))
        rows = decode(batch, outputs)
        context.native_seconds = before + spent
        clock.spend(spent)
        return rows

    context._decode = timed  # type: ignore[method-assign]


def _shared_passes_take(
    shared: SharedContext, clock: SharedClock, cost: Callable[[int], float]
) -> None:
    decode = shared.decode

    def timed(parts: Sequence[PassPart]) -> Any:
        rows = decode(parts)
        clock.spend(cost(sum(len(part.tokens) for part in parts)))
        return rows

    shared.decode = timed  # type: ignore[method-assign]
