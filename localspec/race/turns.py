"""Two answers in turns: each has its own clock, and the one behind goes next.

So neither slows the other, and both are always as far as they would be alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from localspec.stream import Stream

PLAIN, LOCALSPEC = 0, 1
"""The lanes by number."""
NAMES = ("plain", "localspec")


Ends = list[tuple[int, float]]
"""Tokens and clock of a lane at its start, and after each turn."""


class Lap(NamedTuple):
    """A lane's turn: text, tokens, and its clock at the end."""

    lane: int
    text: str
    token_ids: tuple[int, ...]
    seconds: float


@dataclass(slots=True)
class RaceLane:
    """One answer. Its clock counts its own turns, prompt included, calibration left out."""

    stream: Stream
    token_ids: list[int] = field(default_factory=list)
    ends: Ends = field(default_factory=lambda: [(0, 0.0)])
    seconds: float = 0.0

    @property
    def cancelled(self) -> bool:
        return self.stream.finish_reason in (None, "cancelled")


def take_turns(
    lanes: Sequence[RaceLane], clock: Callable[[], float] = perf_counter
) -> Iterator[Lap]:
    """All turns to the last answer's end; on equal clocks the first lane goes first."""
    running = dict(enumerate(lanes))
    while running:
        number, lane = min(running.items(), key=lambda each: each[1].seconds)
        stats = lane.stream.stats
        measured, started = stats.calibration_seconds, clock()
        chunk = next(lane.stream, None)
        lane.seconds += clock() - started - (stats.calibration_seconds - measured)
        if chunk is None:
            del running[number]
            continue
        lane.token_ids += chunk.token_ids
        lane.ends.append((len(lane.token_ids), lane.seconds))
        yield Lap(number, chunk.text, chunk.token_ids, lane.seconds)


def lead(plain: Ends, ours: Ends) -> float | None:
    """Seconds by which localspec had the last common token earlier; None without one."""
    common = min(plain[-1][0], ours[-1][0])
    if not common:
        return None
    return plain[bisect_left(plain, (common, 0.0))][1] - ours[bisect_left(ours, (common, 0.0))][1]
