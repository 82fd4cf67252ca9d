"""Two answers in turns: each has its own clock, and the one behind goes next.

So neither slows the other, and both are always as far as they would be alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from localspec.decoding.stats import GenerationStats
from localspec.stream import Chunk

PLAIN, LOCALSPEC = 0, 1
"""The lanes by number."""
NAMES = ("plain", "localspec")


Ends = list[tuple[int, float]]
"""Tokens and clock of a lane at its start, and after each turn."""


class ChunkStream(Iterator[Chunk], Protocol):
    """As `localspec.stream.Stream`."""

    stats: GenerationStats

    @property
    def text(self) -> str: ...

    @property
    def finish_reason(self) -> str | None: ...

    @property
    def context(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Lap:
    """A lane's turn: text, tokens, and its clock at the end."""

    lane: int
    text: str
    token_ids: tuple[int, ...]
    seconds: float


class RaceLane:
    """One answer and its clock. `seconds`: of its own turns, prompt included, calibration left out;
    `finished`: whether the answer is complete."""

    def __init__(
        self, number: int, stream: ChunkStream, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.stream = stream
        self.seconds = 0.0
        self.finished = False
        self.token_ids: list[int] = []
        self.ends: Ends = [(0, 0.0)]
        self._number = number
        self._clock = clock

    @property
    def cancelled(self) -> bool:
        return self.stream.finish_reason in (None, "cancelled")

    def advance(self) -> Lap | None:
        """Take a turn; None where the answer is complete."""
        stats = self.stream.stats
        measured, started = stats.calibration_seconds, self._clock()
        chunk = next(self.stream, None)
        self.seconds += self._clock() - started
        self.seconds -= stats.calibration_seconds - measured
        if chunk is None:
            self.finished = True
            return None
        self.token_ids += chunk.token_ids
        self.ends.append((len(self.token_ids), self.seconds))
        return Lap(self._number, chunk.text, chunk.token_ids, self.seconds)


def take_turns(lanes: Sequence[RaceLane]) -> Iterator[Lap]:
    """All turns to the last answer's end; on equal clocks the first lane goes first."""
    while running := [lane for lane in lanes if not lane.finished]:
        lap = min(running, key=lambda lane: lane.seconds).advance()
        if lap is not None:
            yield lap


def lead(plain: Ends, ours: Ends) -> float | None:
    """Seconds by which localspec had the last common token earlier; None without one."""
    common = min(plain[-1][0], ours[-1][0])
    if not common:
        return None
    return plain[bisect_left(plain, (common, 0.0))][1] - ours[bisect_left(ours, (common, 0.0))][1]
