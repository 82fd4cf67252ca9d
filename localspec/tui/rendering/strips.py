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


def wrapped(text: Text, width: int, palette: Palette) -> list[Strip]:
    """A text in lines of at most `width` cells."""
    console = palette.console
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    return [strip_of(line, width) for line in lines]


def marked(strip: Strip, span: tuple[int, int], style: Style) -> Strip:
    """A line with a selection's span of characters in another style; -1 is the end."""
    start, end = span
    text = strip.text
    ends = len(text.rstrip()) if end == -1 else end
    left, middle, right = text[:start], text[start:ends], text[ends:]
    if not middle:
        return strip
    cuts = [Strip([Segment(part)]).cell_length for part in (left, middle, right)]
    parts = strip.divide([cuts[0], cuts[0] + cuts[1], strip.cell_length])
    chosen = Strip([Segment(s.text, (s.style or Style()) + style) for s in parts[1]])
    return Strip.join([parts[0], chosen, *parts[2:]])
