"""What the terminal shows: tables and the sweep, without colour, in as many columns as there are.

Laid out by Rich, which typer brings along: a plotting library for eight bars would be one more
thing to install.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.bench.comparison import comparison_table
from localspec.bench.summary import SweepRow
from localspec.bench.table import Table, kind
from localspec.bench.tables import detail_table, gain_tables, speed_table

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from localspec.bench.report import Report

_BAR = 20


def report_text(report: Report, width: int) -> str:
    """What `localspec bench` prints: speeds, figures and the sweep of each pair."""
    parts = []
    for pair in report.pairs:
        if not pair.samples:
            continue
        summary = pair.summary
        parts.append(f"{pair.name}\n")
        for temperature in summary.temperatures:
            speeds = speed_table(summary, temperature, pair.bounds, pair.hardware)
            parts.append(table_text(speeds, width))
            comparison = comparison_table(summary, temperature, pair.bounds)
            if len(comparison.rows) > 1:
                parts.append(table_text(comparison, width))
            parts.append(table_text(detail_table(summary, temperature), width))
            parts += [table_text(gain, width) for gain in gain_tables(summary, temperature)]
            rows = [row for row in summary.sweep if row.temperature == temperature]
            if len(rows) > 1:
                parts.append(sweep_text(rows, width, kind(temperature)))
        parts += [
            f"{found.arm}: {found.equal} of {found.total} greedy answers equal plain's\n"
            for found in summary.equality
            if found.equal < found.total
        ]
    return "\n".join(parts)


def table_text(table: Table, width: int) -> str:
    """A table in at most `width` columns, turned or in blocks where it must be; long words are
    folded."""
    from rich.table import Table as Grid

    from localspec.bench.layout import GAP, column_widths, fitted

    blocks = []
    for block in fitted(table, width):
        grid = Grid(title=block.title, title_justify="left", box=None, padding=(0, GAP, 0, 0))
        widths = column_widths(block, width)
        for number, (name, wanted) in enumerate(zip(block.header, widths, strict=True)):
            justify: JustifyMethod = "right" if number else "left"
            # A single column that is too wide by itself is folded by Rich.
            grid.add_column(name, justify=justify, overflow="fold", width=wanted - GAP)
        for row in block.rows:
            grid.add_row(*row)
        blocks.append(_text([grid, *block.notes], width))
    return "\n".join(blocks)


def sweep_text(rows: Sequence[SweepRow], width: int, words: str) -> str:
    """Depth against acceptance rate and tokens/s, as bars."""
    from rich.bar import Bar
    from rich.table import Table as Grid

    fastest = max((row.tokens_per_second for row in rows), default=0.0) or 1.0
    grid = Grid(
        title=f"Sweep of the depth, {words}", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for name in ("depth", "accepted", "", "tok/s", ""):
        grid.add_column(name, justify="left" if name == "" else "right")
    for row in rows:
        grid.add_row(
            str(row.depth),
            f"{row.acceptance:.0%}",
            Bar(1.0, 0.0, row.acceptance, width=_BAR),
            f"{row.tokens_per_second:.1f}",
            Bar(fastest, 0.0, row.tokens_per_second, width=_BAR),
        )
    return _text([grid], width)


def _text(parts: Sequence[RenderableType], width: int) -> str:
    from rich.console import Console

    file = io.StringIO()
    # Names are shown as they are: neither markup nor emoji nor numbers in colour.
    console = Console(
        file=file, width=width, color_system=None, markup=False, emoji=False, highlight=False
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
