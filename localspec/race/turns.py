"""Two answers in turns: each has a clock of its own, and the one that is behind goes next.

So neither slows the other, as it would in a process beside it, and at every moment both have come
as far as they would have in the same time alone.
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
    """What a lane advances; `localspec.stream.Stream`."""

    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class Lap:
    """One turn of a lane.

    Attributes:
        lane: its number.
        text: what it added.
        token_ids: what it committed.
        seconds: on the lane's own clock, at the end of the turn.
    """

    lane: int
    text: str
    token_ids: tuple[int, ...]
    seconds: float


class Lane:
    """One answer and its clock.

    Attributes:
        seconds: that its own turns took, the reading of the prompt included. What measuring the
            machine takes, once for a pair, is left out: `GenerationStats.calibration_seconds`.
        finished: whether the answer is complete.
        token_ids: of the answer so far.
    """

    def __init__(self, number: int, answer: ChunkStream, clock: Callable[[], float]) -> None:
        self.seconds = 0.0
        self.finished = False
        self.token_ids: list[int] = []
        self._number = number
        self._answer = answer
        self._clock = clock

    def advance(self) -> Lap | None:
        """Take a turn; None where the answer was complete already."""
        measured, started = self._answer.stats.calibration_seconds, self._clock()
        chunk = next(self._answer, None)
        self.seconds += self._clock() - started
        self.seconds -= self._answer.stats.calibration_seconds - measured
        if chunk is None:
            self.finished = True
            return None
        self.token_ids += chunk.token_ids
        return Lap(self._number, chunk.text, chunk.token_ids, self.seconds)


def take_turns(lanes: Sequence[Lane]) -> Iterator[Lap]:
    """All turns up to the end of the last answer; the first lane goes first where clocks agree."""
    while running := [lane for lane in lanes if not lane.finished]:
        lap = min(running, key=lambda lane: lane.seconds).advance()
        if lap is not None:
            yield lap


def lanes_of(
    answers: Sequence[ChunkStream], clock: Callable[[], float] = perf_counter
) -> list[Lane]:
    """A lane for each answer, in their order."""
    return [Lane(number, answer, clock) for number, answer in enumerate(answers)]


class Progress:
    """How far both lanes are, for whoever shows it: made from laps alone.

    Attributes:
        laps: of each lane, in order.
    """

    def __init__(self) -> None:
        self.laps: tuple[list[Lap], list[Lap]] = ([], [])
        self._reached: tuple[list[int], list[int]] = ([], [])  # tokens at the end of each lap

    def add(self, lap: Lap) -> None:
        """Count a turn."""
        reached = self._reached[lap.lane]
        reached.append(self.tokens(lap.lane) + len(lap.token_ids))
        self.laps[lap.lane].append(lap)

    def tokens(self, lane: int) -> int:
        """How many a lane has."""
        return self._reached[lane][-1] if self._reached[lane] else 0

    def seconds(self, lane: int) -> float:
        """A lane's clock."""
        return self.laps[lane][-1].seconds if self.laps[lane] else 0.0

    def text(self, lane: int) -> str:
        """A lane's answer so far."""
        return "".join(lap.text for lap in self.laps[lane])

    def lead(self) -> float | None:
        """Seconds by which localspec had the last token that both have earlier than plain decoding
        had it; negative where it was later. None before both have one."""
        common = min(self.tokens(PLAIN), self.tokens(LOCALSPEC))
        if not common:
            return None
        return self._when(PLAIN, common) - self._when(LOCALSPEC, common)

    def _when(self, lane: int, tokens: int) -> float:
        return self.laps[lane][bisect_left(self._reached[lane], tokens)].seconds


def in_order(laps: Sequence[Lap]) -> list[Lap]:
    """As they would have come from two machines: by their lanes' clocks."""
    return sorted(laps, key=lambda lap: lap.seconds)
