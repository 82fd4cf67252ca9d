"""Two conversations in turns: each has a clock of its own, and the one that is behind goes next.

So neither slows the other, as it would in a process beside it, and at every moment both have come
as far as they would have in the same time alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        question: which one of the conversation it answers, from 0.
    """

    lane: int
    text: str
    token_ids: tuple[int, ...]
    seconds: float
    question: int = 0


class LaneAnswer:
    """One answer of a lane.

    Attributes:
        stream: what it comes from.
        began: on the lane's clock.
        seconds: that it took so far.
        token_ids: of it so far.
    """

    def __init__(self, stream: ChunkStream, began: float) -> None:
        self.stream = stream
        self.began = began
        self.seconds = 0.0
        self.token_ids: list[int] = []


class RaceLane:
    """One conversation and its clock.

    Args:
        streams: the answers, each asked for when the one before is complete.

    Attributes:
        seconds: that its own turns took, the reading of the prompts included. What measuring the
            machine takes, once for a pair, is left out: `GenerationStats.calibration_seconds`.
        finished: whether all answers are complete.
        answers: so far.
    """

    def __init__(
        self, number: int, streams: Iterable[ChunkStream], clock: Callable[[], float] = perf_counter
    ) -> None:
        self.seconds = 0.0
        self.finished = False
        self.answers: list[LaneAnswer] = []
        self._number = number
        self._streams = iter(streams)
        self._clock = clock
        self._complete = True

    def advance(self) -> Lap | None:
        """Take a turn; None where all was said already."""
        if self._complete:
            stream = next(self._streams, None)
            if stream is None:
                self.finished = True
                return None
            self.answers.append(LaneAnswer(stream, self.seconds))
            self._complete = False
        answer = self.answers[-1]
        measured, started = answer.stream.stats.calibration_seconds, self._clock()
        chunk = next(answer.stream, None)
        self.seconds += self._clock() - started
        self.seconds -= answer.stream.stats.calibration_seconds - measured
        answer.seconds = self.seconds - answer.began
        if chunk is None:
            self._complete = True
            return self.advance()
        answer.token_ids += chunk.token_ids
        question = len(self.answers) - 1
        return Lap(self._number, chunk.text, chunk.token_ids, self.seconds, question)


def take_turns(lanes: Sequence[RaceLane]) -> Iterator[Lap]:
    """All turns up to the end of the last answer; the first lane goes first where clocks agree."""
    while running := [lane for lane in lanes if not lane.finished]:
        lap = min(running, key=lambda lane: lane.seconds).advance()
        if lap is not None:
            yield lap


class RaceProgress:
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
