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


class ChunkStream(Iterator[Chunk], Protocol):
    """As `localspec.stream.Stream`."""

    stats: GenerationStats


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
        self.seconds = 0.0
        self.finished = False
        self.token_ids: list[int] = []
        self._number = number
        self._stream = stream
        self._clock = clock

    def advance(self) -> Lap | None:
        """Take a turn; None where the answer is complete."""
        stats = self._stream.stats
        measured, started = stats.calibration_seconds, self._clock()
        chunk = next(self._stream, None)
        self.seconds += self._clock() - started
        self.seconds -= stats.calibration_seconds - measured
        if chunk is None:
            self.finished = True
            return None
        self.token_ids += chunk.token_ids
        return Lap(self._number, chunk.text, chunk.token_ids, self.seconds)


def take_turns(lanes: Sequence[RaceLane]) -> Iterator[Lap]:
    """All turns to the last answer's end; on equal clocks the first lane goes first."""
    while running := [lane for lane in lanes if not lane.finished]:
        lap = min(running, key=lambda lane: lane.seconds).advance()
        if lap is not None:
            yield lap


class RaceProgress:
    """How far both lanes are, from laps alone."""

    def __init__(self) -> None:
        # Tokens and clock at the start, and at the end of each lap.
        self._laps: tuple[list[tuple[int, float]], ...] = ([(0, 0.0)], [(0, 0.0)])

    def add(self, lap: Lap) -> None:
        self._laps[lap.lane].append((self.tokens(lap.lane) + len(lap.token_ids), lap.seconds))

    def tokens(self, lane: int) -> int:
        return self._laps[lane][-1][0]

    def seconds(self, lane: int) -> float:
        return self._laps[lane][-1][1]

    def lead(self) -> float | None:
        """Seconds by which localspec had the last common token earlier; None without one."""
        common = min(self.tokens(PLAIN), self.tokens(LOCALSPEC))
        if not common:
            return None
        plain, ours = (laps[bisect_left(laps, (common, 0.0))][1] for laps in self._laps)
        return plain - ours
