"""Tables on standard output: as wide as the terminal, or as they need to be in a pipe."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from io import StringIO

_WIDEST = 100_000
"""Columns of a pipe: whoever reads it there wants whole paths."""


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> str:
    """Text of a table.

    Args:
        rows: cells, fit for a terminal already.
        right: columns of the header whose cells stand to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in header:
        shown.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    page = StringIO()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDEST
    Console(file=page, width=width, color_system=None).print(shown)
    lines = (line.rstrip().removeprefix(" ") for line in page.getvalue().splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def facts(rows: Iterable[tuple[str, str]], *, width: int = 16) -> str:
    """Lines of a name and a value each; further lines of a value stand below its first."""
    return "".join(
        f"{name:<{width}}{value}".replace("\n", "\n" + " " * width).rstrip() + "\n"
        for name, value in rows
    )


def count(number: int | None) -> str:
    """Parameters for people: 1.7 B, 135 M."""
    if number is None:
        return ""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            amount = number / size
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.1f} {unit}"
    return str(number)
