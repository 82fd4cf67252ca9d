"""A race as lines, at several sizes, and what is sent to a terminal for them."""

import pytest
from rich.cells import cell_len

from localspec.cli.output import Console
from localspec.cli.race_view import RaceScreen
from localspec.race import LOCALSPEC, PLAIN, Lap
from tests.race.laps import sample


def view(laps: list[Lap]) -> RaceScreen:
    found = RaceScreen(Console(), "Count to five,\nplease.", live=False)
    found.begin("tale-13m · greedy")
    for lap in laps:
        found.show(lap)
    return found


def long_race() -> list[Lap]:
    """Two hundred words in each lane, some wide, some longer than any line."""
    words = ["fox ", "世界 ", "x" * 70 + " ", "\tend\n"]
    return [
        Lap(lane, words[number % 4], (number,), number / 10 + lane / 100)
        for number in range(200)
        for lane in (PLAIN, LOCALSPEC)
    ]


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
@pytest.mark.parametrize("height", [1, 5, 10, 24, 40])
@pytest.mark.parametrize("laps", [[], sample(), long_race()], ids=["none", "short", "long"])
def test_view_fits_the_screen(width: int, height: int, laps: list[Lap]) -> None:
    lines = view(laps).lines(width, height)
    assert len(lines) <= height
    assert max(cell_len(line.plain) for line in lines) <= width


def test_two_columns_on_a_wide_terminal() -> None:
    lines = [line.plain for line in view(sample()).lines(80, 24)]
    assert lines[:2] == ["localspec race · tale-13m · greedy", "› Count to five, please."]
    assert [[part.strip() for part in line.split("│")] for line in lines[2:6]] == [
        ["plain", "localspec"],
        ["5.00 s · 5 tokens · 1.0 tok/s", "3.00 s · 5 tokens · 1.7 tok/s"],
        *(["One two three"] * 2, ["four five."] * 2),
    ]
    assert lines[-1].startswith("localspec is 2.00 s ahead")


def test_later_question_is_shown_in_both_lanes() -> None:
    found = view(sample())
    found.ask("And then?\x1b[2J")
    shown = [line.plain for line in found.lines(80, 24)]
    (row,) = [line for line in shown if "And then?" in line]
    assert [part.strip() for part in row.split("│")] == ["› And then?\ufffd[2J"] * 2
