"""Tables wider than the terminal are transposed, or cut into blocks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len

from localspec.bench.table import Table

GAP = 1
_HEADER_LINES = 3
"""Most lines that a column's name is broken into."""
_LONGEST_WORD = 16


def fitted(table: Table, width: int) -> list[Table]:
    """The same figures in tables of at most `width` columns of text.

    As it is if it fits, else transposed, else the shorter of the two in blocks of columns that
    repeat the first. The notes stand below the last.
    """
    turned = transposed(table)
    for each in (table, turned):
        if sum(column_widths(each, width)) <= width:
            return [each]
    return min((_blocks(each, width) for each in (table, turned)), key=_lines)


def transposed(table: Table) -> Table:
    corner, *names = table.header
    rows = [[name, *(row[place] for row in table.rows)] for place, name in enumerate(names, 1)]
    return replace(table, header=[corner, *(row[0] for row in table.rows)], rows=rows)


def column_widths(table: Table, width: int) -> list[int]:
    """Width of each column, the gap after it included; the first wraps beyond a third of it."""
    first, *rest = zip(table.header, *table.rows, strict=True)
    names = max(map(cell_len, first))
    words = max((cell_len(word) for cell in first for word in cell.split()), default=0)
    wanted = min(names, max(width // 3, min(words, width // 2)))
    others = [max(_header_width(header), *map(cell_len, ("", *cells))) for header, *cells in rest]
    return [wanted + GAP, *(other + GAP for other in others)]


def _header_width(name: str) -> int:
    longest = max((cell_len(word) for word in name.split()), default=1)
    width = max(1, min(longest, _LONGEST_WORD))
    while len(textwrap.wrap(name, width)) > _HEADER_LINES:
        width += 1
    return width


def _blocks(table: Table, width: int) -> list[Table]:
    first, *others = column_widths(table, width)
    groups: list[list[int]] = [[]]
    used = first
    for number, other in enumerate(others, 1):
        if groups[-1] and used + other > width:
            groups.append([])
            used = first
        groups[-1].append(number)
        used += other
    return [
        Table(
            f"{table.title} ({block} of {len(groups)})",
            _picked(table.header, group),
            [_picked(row, group) for row in table.rows],
            table.notes if block == len(groups) else [],
        )
        for block, group in enumerate(groups, 1)
    ]


def _picked(cells: Sequence[str], columns: Sequence[int]) -> list[str]:
    return [cells[0], *(cells[number] for number in columns)]


def _lines(tables: Sequence[Table]) -> int:
    return sum(len(table.rows) + _HEADER_LINES for table in tables)
