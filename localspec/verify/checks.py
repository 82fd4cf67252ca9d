"""Parts shared by all checks: effort, deadline, limits and outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

_Piece = TypeVar("_Piece")

PASSED, FAILED, INCOMPLETE = "passed", "failed", "incomplete"


@dataclass(frozen=True, slots=True)
class Effort:
    """The amount of work of all checks.

    Attributes:
        seconds: for all checks together (None: no limit). A check that runs out of time ends with
            its results so far.
        prompts: answered greedily, with up to `tokens`.
        sizes: tokens of the passes whose rounding is measured.
        places: texts after which tokens are sampled, `samples` times for each way of drafting.
        answers: for each way of drafting, in the checks of caches and grammar.
    """

    name: str
    seconds: float | None
    prompts: int
    tokens: int
    sizes: tuple[int, ...]
    places: int
    samples: int
    answers: int


QUICK = Effort("quick", 50.0, 4, 32, (2, 4), 4, 500, 1)
USUAL = Effort("usual", 600.0, 14, 64, (2, 3, 4, 6, 8), 12, 3000, 3)
THOROUGH = Effort("thorough", None, 56, 128, (2, 3, 4, 5, 6, 8, 12, 16), 32, 10_000, 6)


class Deadline:
    """The time at which a check should end, in `seconds` (None: never); nothing is interrupted."""

    def __init__(self, seconds: float | None, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._until = None if seconds is None else clock() + seconds

    @property
    def over(self) -> bool:
        return self._until is not None and self._clock() >= self._until

    def share(self, part: float) -> Deadline:
        """A deadline for a part of the remaining time."""
        if self._until is None:
            return self
        return Deadline(part * (self._until - self._clock()), self._clock)

    def within(self, pieces: Iterable[_Piece]) -> Iterator[_Piece]:
        """The first piece, then further ones while there is time for the longest so far."""
        longest = 0.0
        for number, piece in enumerate(pieces):
            began = self._clock()
            if number and self._until is not None and began + longest > self._until:
                return
            yield piece
            longest = max(longest, self._clock() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a check. `complete`: there was time for all of it."""

    faults: tuple[str, ...]
    summary: str
    figures: dict[str, Any]
    complete: bool = True


BIT_EXACT = -1.0
"""The limit for logits if all bits must be the same."""


def excess(limit: float) -> str:
    if limit == BIT_EXACT:
        return "nothing may differ with localspec's kernels"
    return f"more than rounding explains ({limit:.4f})"


def skipped_ways(untried: Sequence[str], idle: Sequence[str]) -> str:
    """A sentence about ways that ran out of time or drafted nothing."""
    found = f" There was no time for {', '.join(untried)}." if untried else ""
    if idle:
        found += f" Not tested, as they drafted nothing: {', '.join(idle)}."
    return found
