"""Answers that are made up, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Sequence

from localspec import Chunk, GenerationStats
from localspec.race.race_outcome import RaceOutcome
from localspec.race.turns import LOCALSPEC, PLAIN, Lap, RaceLane, take_turns
from tests.support.clock import Clock


class MadeUp:
    """An answer whose steps take so many seconds and bring so many tokens. `measuring`: seconds of
    its first step that are spent measuring passes."""

    finish_reason: str | None = "length"
    context: Sequence[int] = ()

    def __init__(
        self, clock: Clock, steps: Sequence[tuple[float, str, int]], *, measuring: float = 0.0
    ) -> None:
        self.stats = GenerationStats()
        self.text = ""
        self._clock, self._steps, self._measuring = clock, iter(steps), measuring

    def __iter__(self) -> MadeUp:
        return self

    def __next__(self) -> Chunk:
        seconds, text, tokens = next(self._steps)
        self.text += text
        self._clock.now += seconds + self._measuring
        self.stats.calibration_seconds += self._measuring
        self._measuring = 0.0
        return Chunk(text, tuple(range(tokens)), ("target",) * tokens, None)


def laps_of(answers: Sequence[MadeUp], clock: Clock) -> list[Lap]:
    """The turns of these answers to one question."""
    return list(take_turns([RaceLane(answer) for answer in answers], clock))  # type: ignore[arg-type]


def sample() -> list[Lap]:
    """Five tokens each, in five passes and in two."""
    words = ["One ", "two ", "three\n", "four ", "five."]
    plain = [Lap(PLAIN, word, (number,), 1.0 + number) for number, word in enumerate(words)]
    ours = [
        Lap(LOCALSPEC, "One ", (0,), 1.25),
        Lap(LOCALSPEC, "".join(words[1:]), (1, 2, 3, 4), 3.0),
    ]
    return [plain[0], ours[0], plain[1], ours[1], *plain[2:]]


def lane(tokens: int, seconds: float, finish: str = "length", **stats: object) -> RaceLane:
    """An answer of so many tokens, in one pass."""
    clock = Clock()
    answer = MadeUp(clock, [(seconds, "word " * tokens, tokens)] if tokens else [])
    answer.finish_reason = finish
    found = RaceLane(answer)  # type: ignore[arg-type]
    list(take_turns([found], clock))
    answer.stats = GenerationStats(generated_tokens=tokens, **stats)  # type: ignore[arg-type]
    return found


def outcome(**other: object) -> RaceOutcome:
    """A race that localspec won, but for what is said."""
    kept = {
        "plain": lane(100, 4.0, target_passes=100),
        "localspec": lane(100, 2.0, target_passes=40),
        "greedy": True,
        "parting": None,
    }
    return RaceOutcome(**(kept | other))  # type: ignore[arg-type]
