"""Lists of conversations and search hits, for people or for other programs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from localspec.chat.titles import one_line
from localspec.history.history import ConversationSummary, SearchHit
from localspec.history.query import parts

ID = 8
"""Characters of an id that are shown."""

_LEAST = 16
"""Cells of the last column below which another one makes room."""

_STEERING = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "\ufffd")
_STEERING |= {ord("\n"): "\n", ord("\t"): "\t", ord("\r"): ""}
# They turn the direction of what stands behind them.
_STEERING |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "\ufffd")


def harmless(text: str) -> str:
    """Text without what steers a terminal."""
    return text.translate(_STEERING)


def plain(text: str) -> str:
    """A title or name in one line, without what steers a terminal."""
    return one_line(text) or "(no title)"


def conversations(found: Sequence[ConversationSummary], *, terminal: bool) -> str:
    """A line each. On a terminal in columns; elsewhere whole, with tabs between them."""
    rows = [
        (
            str(number),
            each.id[:ID] if terminal else each.id,
            _when(each.updated),
            str(each.messages),
            _name(each.model),
            plain(each.title),
        )
        for number, each in enumerate(found, start=1)
    ]
    if not terminal:
        return "".join("\t".join(row) + "\n" for row in rows)
    return _columns(
        ("#", "ID", "UPDATED", "MESSAGES", "MODEL", "TITLE"),
        rows,
        right={"#", "MESSAGES"},
        spare="MODEL",
    )


def hits(found: Sequence[SearchHit], *, terminal: bool) -> str:
    """A line each, as in `conversations`."""
    rows = [
        (
            each.conversation[:ID] if terminal else each.conversation,
            _when(each.updated),
            each.role or "title",
            plain(each.title),
            plain("".join(text for text, _ in parts(each.snippet))),
        )
        for each in found
    ]
    if not terminal:
        return "".join("\t".join(row) + "\n" for row in rows)
    return _columns(("ID", "UPDATED", "WHERE", "TITLE", "TEXT"), rows, right=set(), spare="UPDATED")


def _columns(
    heading: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, right: set[str], spare: str
) -> str:
    """Columns as wide as the terminal; `spare` is left out where it is too narrow."""
    total = shutil.get_terminal_size().columns
    table = [heading, *rows]
    if total - _width(table, total) < _LEAST and spare in heading:
        at = heading.index(spare)
        table = [row[:at] + row[at + 1 :] for row in table]
    widths = _widths(table, total)
    widths[-1] = max(_LEAST, total - _width(table, total))
    lines = []
    for row in table:
        cells = []
        for name, text, width in zip(table[0], row, widths, strict=True):
            if cell_len(text) > width:
                text = set_cell_size(text, width - 1).rstrip() + "…"
            blank = " " * (width - cell_len(text))
            cells.append(blank + text if name in right else text + blank)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _widths(table: Sequence[tuple[str, ...]], total: int) -> list[int]:
    """Of each column; the one before the last has at most a quarter of the line."""
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    widths[-2] = min(widths[-2], max(len(table[0][-2]), total // 4))
    return widths


def _width(table: Sequence[tuple[str, ...]], total: int) -> int:
    """Of all but the last column, with the blanks behind them."""
    return sum(width + 2 for width in _widths(table, total)[:-1])


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):  # a damaged file may hold any number
        return "?"


def _name(model: str | None) -> str:
    """The model's name; conversations of older versions have paths."""
    name = Path(model or "")
    return plain(name.stem if name.suffix.lower() == ".gguf" else model) if model else "-"
