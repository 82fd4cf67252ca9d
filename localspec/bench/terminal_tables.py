"""The tables of a report in a terminal, without colour."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.cells import cell_len

from localspec.bench.report_tables import tables
from localspec.bench.summary import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from localspec.bench.report import Report

_GAP = 1


def report_text(report: Report, width: int) -> str:
    parts = []
    for pair in report.pairs:
        if pair.samples:
            parts.append(f"{pair.name}\n")
            parts += [table_text(table, width) for table in tables(pair.summary, equality=False)]
            parts += [
                f"{found.arm}: {found.equal} of {found.total} greedy answers equal plain's\n"
                for found in pair.summary.equality
                if found.equal < found.total
            ]
    return "\n".join(parts)


def table_text(table: Table, width: int) -> str:
    """A table in at most `width` columns of text.

    One that is wider comes in blocks of columns, each with the first column; long words are folded.
    """
    from rich.console import Console
    from rich.table import Table as Grid

    file = io.StringIO()
    # Names are shown as they are: neither markup nor emoji nor numbers in colour.
    console = Console(
        file=file, width=width, color_system=None, markup=False, emoji=False, highlight=False
    )
    widths = _widths(table, width)
    blocks = _blocks(widths, width)
    for number, block in enumerate(blocks, 1):
        title = f"{table.title} ({number} of {len(blocks)})" if len(blocks) > 1 else table.title
        grid = Grid(title=title, title_justify="left", box=None, padding=(0, _GAP, 0, 0))
        for column in block:
            justify: JustifyMethod = "right" if column else "left"
            name = table.header[column]
            grid.add_column(name, justify=justify, overflow="fold", width=widths[column])
        for row in table.rows:
            grid.add_row(*(row[column] for column in block))
        console.print(*([""] if number > 1 else []), grid, sep="\n")
    console.print(*table.notes, sep="\n", end="\n" if table.notes else "")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _widths(table: Table, width: int) -> list[int]:
    """Of each column: names of rows wrap beyond a third of the width, titles between words."""
    first, *rest = zip(table.header, *table.rows, strict=True)
    longest = max((cell_len(word) for name in first for word in name.split()), default=0)
    names = min(max(map(cell_len, first)), max(width // 3, min(longest, width // 2)))
    return [
        names,
        *(max(map(cell_len, ["", *title.split(), *cells])) for title, *cells in rest),
    ]


def _blocks(widths: list[int], width: int) -> list[list[int]]:
    """Columns that fit beside the first."""
    blocks, used = [[0]], widths[0] + _GAP
    for column, own in enumerate(widths[1:], 1):
        if len(blocks[-1]) > 1 and used + own + _GAP > width:
            blocks.append([0])
            used = widths[0] + _GAP
        blocks[-1].append(column)
        used += own + _GAP
    return blocks
