"""Tables and lists: fitted to a terminal, unshortened in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

_WIDEST = 100_000
_SENTENCE = 40
"""Minimum width of a cell with sentences."""
_LEAST = 16
"""Minimum width of shortened cells."""
_GLUE = "\0"


def table(
    rows: Sequence[Mapping[str, str]],
    *,
    right: Sequence[str] = (),
    sentences: Sequence[str] = (),
    spare: Sequence[str] = (),
    cut: str = "",
) -> str:
    """Format rows, which have cells by title, for the terminal; "" without rows. In a pipe only
    sentences are wrapped. Cells must not have control characters. Columns by title: `right` are
    right-aligned, `spare` are dropped on a narrow terminal in this order, and cells of `cut` are
    shortened there instead of wrapped."""
    if not rows:
        return ""
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    page = StringIO()
    console = Console(file=page, width=_WIDEST, color_system=None)
    columns = {title: [row[title] for row in rows] for title in rows[0]}

    def draw(widest: int = _WIDEST) -> tuple[Table, int]:
        built = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        shown = columns | {cut: [shorten(cell, widest) for cell in columns.get(cut, ())]}
        for title in columns:
            justify: Literal["left", "right"] = "right" if title in right else "left"
            least = None if terminal else max(map(cell_len, (title, *shown[title])))
            if least is not None and title in sentences:
                least = min(least, _SENTENCE)
            built.add_column(title, justify=justify, overflow="fold", min_width=least)
        for cells in zip(*(shown[title] for title in columns), strict=True):
            built.add_row(*map(Text, cells))
        return built, console.measure(built).maximum

    for title in spare if terminal else ():
        if draw(_LEAST if cut else _WIDEST)[1] <= _width():
            break
        del columns[title]
    room = _LEAST + _width() - draw(_LEAST)[1] if cut and terminal else _WIDEST
    shown = draw(max(_LEAST, room))[0]
    console.width = max(_width(), 0 if terminal else console.measure(shown).minimum)
    console.print(shown)
    lines = (line.rstrip().removeprefix(" ") for line in page.getvalue().splitlines())
    return "\n".join(line for line in lines if line) + "\n"


def shorten(text: str, width: int) -> str:
    """Shorten a text to at most `width` cells, with an ellipsis."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Format names and values; further lines of a value are indented below its first."""
    return "".join(indent(f"{name:<16}", value) for name, value in rows)


def indent(start: str, text: str) -> str:
    """Wrap a text after the start of a line, with a hanging indent."""
    room = max(_SENTENCE, _width() - len(start))
    lines = [
        line
        for paragraph in text.split("\n")
        for line in textwrap.wrap(paragraph, room, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]
    whole = ("\n" + " " * len(start)).join(lines)
    return f"{start}{whole}".replace(_GLUE, " ").rstrip() + "\n"


def moment(seconds: float) -> str:
    """A Unix time, in local time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def unbreakable(text: str) -> str:
    """Protect a text, such as a path, from line breaks by `facts`."""
    return text.replace(" ", _GLUE)


def _width() -> int:
    return shutil.get_terminal_size().columns
