"""Lines rendered by rich, as Textual paints them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from localspec.tui.rendering.palette import Palette

INDENT = 2
"""Cells left of a message: the bar of the selected one, and a blank."""

_MARGIN = Segment(" " * INDENT, Style.null())


def strip_of(segments: Iterable[Segment], width: int) -> Strip:
    """A line of `width` cells behind the margin."""
    parts = [Segment(s.text, s.style or Style.null()) for s in segments if not s.control]
    return Strip([_MARGIN, *parts]).simplify().adjust_cell_length(width + INDENT)


def margin(strip: Strip) -> int:
    """Characters left of a line's text: of code all up to the blank on its ground."""
    at = 0
    for segment in strip:
        if segment.text[:1] == " " and segment.style and segment.style.bgcolor is not None:
            return at + 1
        if segment.text.strip():
            break
        at += len(segment.text)
    return INDENT


def wrapped(text: Text, width: int, palette: Palette) -> list[Strip]:
    """A text in lines of at most `width` cells."""
    console = palette.console
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    return [strip_of(line, width) for line in lines]


def marked(strip: Strip, span: tuple[int, int], style: Style, palette: Palette) -> Strip:
    """A line with a selection's span of characters in another style; -1 is the end."""
    text = Text.assemble(*((part.text, part.style or "") for part in strip), end="")
    start, end = span
    text.stylize(style, start, len(text.plain.rstrip()) if end == -1 else end)
    return Strip(text.render(palette.console))
