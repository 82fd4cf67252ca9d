"""The tables of a report in a terminal, without colour."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from localspec.bench.table import Table
from localspec.bench.tables import tables

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from localspec.bench.report import Report


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
    """A table in at most `width` columns of text; long words are folded."""
    from rich.console import Console
    from rich.table import Table as Grid

    from localspec.bench.layout import GAP, column_widths, fitted

    file = io.StringIO()
    # Names are shown as they are: neither markup nor emoji nor numbers in colour.
    console = Console(
        file=file, width=width, color_system=None, markup=False, emoji=False, highlight=False
    )
    for number, block in enumerate(fitted(table, width)):
        if number:
            console.print()
        grid = Grid(title=block.title, title_justify="left", box=None, padding=(0, GAP, 0, 0))
        widths = column_widths(block, width)
        for place, (name, wanted) in enumerate(zip(block.header, widths, strict=True)):
            # A single column that is too wide by itself is folded by Rich.
            justify: JustifyMethod = "right" if place else "left"
            grid.add_column(name, justify=justify, overflow="fold", width=wanted - GAP)
        for row in block.rows:
            grid.add_row(*row)
        console.print(grid, *block.notes, sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
