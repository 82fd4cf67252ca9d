"""Wide tables in a narrow terminal."""

from __future__ import annotations

import pytest

from localspec.bench.layout import fitted, transposed
from localspec.bench.table import Table
from localspec.bench.terminal import table_text

SUITES = (
    *("coding", "extraction", "humanities", "math", "math_reasoning", "qa", "rag", "reasoning"),
    *("roleplay", "stem", "summarization", "translation", "writing"),
)
"""The categories of Spec-Bench."""


def a_table(arms: int, suites: int = 13, cell: str = "1.60 (1.42–1.81)") -> Table:
    """Every figure tells where it stands in its last two digits."""
    rows = [
        [f"arm {row}", *(f"{cell}{row:x}{column:x}" for column in range(suites))]
        for row in range(arms)
    ]
    return Table("Speeds", ["arm", *SUITES[:suites]], rows, ["A note."])


def shown(table: Table, width: int) -> list[str]:
    lines = table_text(table, width).splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_what_fits_stays_as_it_is() -> None:
    table = a_table(3, 4, "1.")
    assert fitted(table, 80) == [table]
    assert fitted(table, 24) != [table]


def test_suites_become_rows_where_that_fits() -> None:
    table = a_table(3)
    assert fitted(table, 80) == [transposed(table)]
    lines = shown(table, 80)
    assert lines[1].split() == ["arm", *("arm", "0", "arm", "1", "arm", "2")]
    assert [line.split()[0] for line in lines[2:15]] == list(SUITES)
    assert lines[4].split()[-1] == "(1.42–1.81)22"
    assert lines[-1] == "A note."


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize("arms", [1, 5, 9, 15])
def test_blocks_hold_every_figure_once_and_whole(arms: int, width: int) -> None:
    table = a_table(arms, cell="1.6_")
    lines = shown(table, width)
    words = [word for line in lines for word in line.split()]
    figures = [word for word in words if word.startswith("1.6_")]
    assert sorted(figures) == sorted(cell for row in table.rows for cell in row[1:])
    assert lines.count("A note.") == 1
    assert all(name in words for name in SUITES)


def test_long_names_are_broken_between_words() -> None:
    table = Table(
        "T",
        ["", *(f"planner, cold ÷ best configuration of each suite {n}" for n in range(3))],
        [[suite, *("1.00",) * 3] for suite in SUITES],
    )
    lines = shown(table, 80)
    assert len([line for line in lines if line.startswith("writing")]) == 1
    assert "configuration" in " ".join(lines)


def test_names_wider_than_the_terminal_are_folded() -> None:
    table = Table("T", ["arm", "x" * 100], [["y" * 100, "z" * 100]])
    text = "".join(shown(table, 40)).replace(" ", "")
    assert (text.count("x"), text.count("y"), text.count("z")) == (100, 100, 100)
