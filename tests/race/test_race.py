"""Who goes next, by a clock that only the answers move, and what comes of it."""

import json
from collections.abc import Sequence

import pytest

from localspec import Chunk, GenerationStats
from localspec.race import (
    Ends,
    Lap,
    RaceLane,
    RaceOutcome,
    TextDifference,
    figures,
    first_difference,
    lead,
    summary,
    take_turns,
)
from tests.race.laps import sample
from tests.support.clock import Clock


class ScriptedAnswer:
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

    def __iter__(self) -> "ScriptedAnswer":
        return self

    def __next__(self) -> Chunk:
        seconds, text, tokens = next(self._steps)
        self.text += text
        self._clock.now += seconds + self._measuring
        self.stats.calibration_seconds += self._measuring
        self._measuring = 0.0
        return Chunk(text, tuple(range(tokens)), ("target",) * tokens, None)


def run_turns(answers: Sequence[ScriptedAnswer], clock: Clock) -> list[Lap]:
    return list(take_turns([RaceLane(answer) for answer in answers], clock))  # type: ignore[arg-type]


def test_slower_lane_goes_next() -> None:
    clock = Clock()
    plain = ScriptedAnswer(clock, [(1.0, "p", 1)] * 6)
    ours = ScriptedAnswer(clock, [(2.5, "l", 3)] * 2)
    laps = run_turns([plain, ours], clock)
    # At 0 : 0, 1 : 0, 1 : 2.5, 2 : 2.5, 3 : 2.5, 3 : 5, 4 : 5 and 5 : 5.
    assert "".join(lap.text for lap in laps) == "plpplppp"
    assert [lap.seconds for lap in laps] == [1.0, 2.5, 2.0, 3.0, 5.0, 4.0, 5.0, 6.0]


def test_calibration_time_is_excluded() -> None:
    clock = Clock()
    answers = [ScriptedAnswer(clock, [(1.0, "x", 1)], measuring=seconds) for seconds in (0.0, 2.0)]
    assert [lap.seconds for lap in run_turns(answers, clock)] == [1.0, 1.0]


def test_lead_at_the_last_common_token() -> None:
    ends: tuple[Ends, Ends] = ([(0, 0.0)], [(0, 0.0)])
    leads = []
    for lap in sample():
        before = ends[lap.lane]
        before.append((before[-1][0] + len(lap.token_ids), lap.seconds))
        leads.append(lead(*ends))
    # after: p1, l1, p2, l5, p3, p4, p5; localspec has all from the second on at 3.0
    assert leads == [None, -0.25, -0.25, -1.0, 0.0, 1.0, 2.0]


def lane(tokens: int, seconds: float, finish: str = "length", **stats: object) -> RaceLane:
    """A lane with an answer of `tokens` tokens, in one pass."""
    clock = Clock()
    answer = ScriptedAnswer(clock, [(seconds, "word " * tokens, tokens)] if tokens else [])
    answer.finish_reason = finish
    found = RaceLane(answer)  # type: ignore[arg-type]
    list(take_turns([found], clock))
    answer.stats = GenerationStats(generated_tokens=tokens, **stats)  # type: ignore[arg-type]
    return found


def outcome(**other: object) -> RaceOutcome:
    """A race that localspec won; `other` replaces fields."""
    kept = {
        "plain": lane(100, 4.0, target_passes=100),
        "localspec": lane(100, 2.0, target_passes=40),
        "greedy": True,
        "difference": None,
    }
    return RaceOutcome(**(kept | other))  # type: ignore[arg-type]


def test_first_difference() -> None:
    names = {1: b"one", 2: b"two", 3: b"three"}.__getitem__
    assert first_difference([1, 2, 3], [1, 2, 3], names) is None
    assert first_difference([1, 2, 3], [1, 2], names) is None
    assert first_difference([1, 2, 3], [1, 3, 3], names) == TextDifference(1, "two", "three")


def test_as_json() -> None:
    found = json.loads(json.dumps(outcome(difference=TextDifference(7, "a", "b")).as_dict()))
    assert (found["speed_up"], found["lead_seconds"]) == (2.0, 2.0)
    assert found["equal"] is False
    assert (found["plain"], found["proof"]) == ("localspec without drafts", None)
    proved = outcome(stock=True, proved=True).as_dict()
    assert (proved["plain"], proved["proof"]) == ("llama.cpp", {"bit_for_bit": True, "wrong": None})
    assert found["parting"] == {"position": 7, "plain": "a", "localspec": "b"}
    assert found["lanes"]["plain"]["tokens"] == 100
    assert found["lanes"]["localspec"]["stats"]["target_passes"] == 40


PARTED, CUT = TextDifference(7, " a", " the"), lane(10, 1.0, "cancelled")
WON = "2.00× as fast, 2.00 s sooner · plain 4.00 s, 25.0 tok/s · localspec 2.00 s, 50.0 tok/s"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({}, f"{WON} · 2.50 tokens/pass · same text, 100 tokens"),
        ({"localspec": lane(50, 2.0), "greedy": False}, "1.00× the tokens per second · plain "),
        ({"difference": PARTED}, "token 8 on: “a” or “the” · rounding can do that; 'localspec"),
        ({"stock": True, "proved": True}, "plain (llama.cpp) 4.00 s, 25.0 tok/s · localspec"),
        (
            {"stock": True, "difference": PARTED, "proved": True},
            "“the” · not due to drafts: without them, the text is the same bit for bit",
        ),
        ({"proved": True, "wrong": 6}, "token 7 differs from the answer without drafts; please"),
        ({"greedy": False, "difference": PARTED}, "sampled, so the texts differ"),
        ({"greedy": False}, "sampled, and yet the same 100 tokens"),
        ({"plain": CUT}, "interrupted · 5.00× the tokens per second · plain 1.00 s, 10.0 tok/s · "),
        ({"plain": CUT}, "same text, 10 tokens so far"),
        (
            {"plain": lane(0, 0.0, "cancelled"), "localspec": lane(0, 0.0)},
            "interrupted · plain no token yet · localspec no token yet",
        ),
    ],
)
def test_line_of_figures(other: dict[str, object], told: str) -> None:
    assert told in figures(outcome(**other))


def test_summary_of_several_questions() -> None:
    second = outcome(plain=lane(100, 8.0, target_passes=100), localspec=lane(100, 1.0))
    first, other, every = summary([outcome(), second], 1.44).splitlines()
    assert first == f"1: {figures(outcome())}"
    assert other.startswith(
        "2: 8.00× as fast, 7.00 s sooner · plain 8.00 s, 12.5 tok/s · localspec 1.00 s, "
    )
    assert every == (
        "all: 4.00× as fast · plain 12.00 s, 16.7 tok/s · localspec 3.00 s, 66.7 tok/s · "
        "calibrated once before: 1.4 s"
    )
    assert summary([outcome()], 0.0) == figures(outcome())
    beside = outcome(stock=True)
    assert "\nall: 2.00× as fast · plain (llama.cpp) 8.00 s" in summary([beside, beside], 0.0)
