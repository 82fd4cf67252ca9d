"""Two conversations in turns: each has its own clock, and the one behind goes next.

So neither slows the other, and both are always as far as they would be alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol, TypeAlias

from localspec.decoding.stats import GenerationStats
from localspec.stream import Chunk, Stream

PLAIN, LOCALSPEC = 0, 1
"""The lanes by number."""
NAMES = ("plain", "localspec")


class ChunkStream(Iterator[Chunk], Protocol):
    """As `localspec.stream.Stream`."""

    stats: GenerationStats


@dataclass(frozen=True, slots=True)
class Lap:
    """A lane's turn: text, tokens, and its clock at the end; `question` counts from 0."""

    lane: int
    text: str
    token_ids: tuple[int, ...]
    seconds: float
    question: int = 0


@dataclass(slots=True)
class LaneAnswer:
    """One answer of a lane; `began` on the lane's clock."""

    stream: ChunkStream
    began: float
    seconds: float = 0.0
    token_ids: list[int] = field(default_factory=list)


class RaceLane:
    """One conversation and its clock.

    Args:
        streams: the answers, each asked for when the one before is complete.

    Attributes:
        seconds: of its own turns, prompts included, calibration left out.
        finished: whether all answers are complete.
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
        """Take a turn; None where everything is answered."""
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
    """All turns to the last answer's end; on equal clocks the first lane goes first."""
    while running := [lane for lane in lanes if not lane.finished]:
        lap = min(running, key=lambda lane: lane.seconds).advance()
        if lap is not None:
            yield lap


class RaceProgress:
    """How far both lanes are, from laps alone."""

    def __init__(self) -> None:
        self._reached: tuple[list[int], list[int]] = ([], [])  # tokens at the end of each lap
        self._clocks: tuple[list[float], list[float]] = ([], [])

    def add(self, lap: Lap) -> None:
        self._reached[lap.lane].append(self.tokens(lap.lane) + len(lap.token_ids))
        self._clocks[lap.lane].append(lap.seconds)

    def tokens(self, lane: int) -> int:
        return self._reached[lane][-1] if self._reached[lane] else 0

    def seconds(self, lane: int) -> float:
        return self._clocks[lane][-1] if self._clocks[lane] else 0.0

    def lead(self) -> float | None:
        """Seconds by which localspec had the last common token earlier; None without one."""
        common = min(self.tokens(PLAIN), self.tokens(LOCALSPEC))
        if not common:
            return None
        plain, ours = (
            self._clocks[lane][bisect_left(self._reached[lane], common)]
            for lane in (PLAIN, LOCALSPEC)
        )
        return plain - ours


Prompt: TypeAlias = str | list[dict[str, str]]


class RacedConversation:
    """Iterating asks for each answer when the one before is complete.

    Args:
        ask: begins an answer.
        prompt: messages, if there are further questions.

    Attributes:
        streams: the answers so far; the first one is asked for at once.
    """

    def __init__(
        self, ask: Callable[[Prompt], Stream], prompt: Prompt, further: Sequence[str] = ()
    ) -> None:
        self.streams = [ask(prompt)]
        self._ask, self._prompt, self._further = ask, prompt, further
        self._cancelled = False

    def __iter__(self) -> Iterator[Stream]:
        prompt = self._prompt
        yield self.streams[0]
        for question in self._further:
            if self._cancelled:
                return
            assert not isinstance(prompt, str), "a bare text has no further questions"
            answer = {"role": "assistant", "content": self.streams[-1].text}
            prompt = [*prompt, answer, {"role": "user", "content": question}]
            self.streams.append(self._ask(prompt))
            if self._cancelled:  # meanwhile
                self.streams[-1].cancel()
            yield self.streams[-1]

    def cancel(self) -> None:
        """End it as soon as possible; from any thread."""
        self._cancelled = True
        self.streams[-1].cancel()
