"""Wide tables in a narrow terminal."""

from __future__ import annotations

import pytest

from localspec.bench.summary import Table
from localspec.bench.terminal_tables import table_text

SUITES = (
    *("coding", "extraction", "humanities", "math", "math_reasoning", "qa", "rag", "reasoning"),
    *("roleplay", "stem", "summarization", "translation", "writing"),
)
"""The categories of Spec-Bench."""


def shown(table: Table, width: int) -> list[str]:
    lines = table_text(table, width).splitlines()
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("arms", [1, 15])
def test_every_figure_is_shown_once_and_whole(arms: int, width: int) -> None:
    rows = [
        [f"arm {row}", *(f"1.6_{row:x}{column:x}" for column in range(13))] for row in range(arms)
    ]
    lines = shown(Table("Speeds", ["arm", *SUITES], rows, ["A note."]), width)
    words = [word for line in lines for word in line.split()]
    figures = [word for word in words if word.startswith("1.6_")]
    assert sorted(figures) == sorted(cell for row in rows for cell in row[1:])
    assert lines.count("A note.") == 1
    assert all(name in words for name in SUITES)


def test_names_wider_than_the_terminal_are_folded() -> None:
    table = Table("T", ["arm", "x" * 100], [["y" * 100, "z" * 100]])
    text = "".join(shown(table, 40)).replace(" ", "")
    assert (text.count("x"), text.count("y"), text.count("z")) == (100, 100, 100)
