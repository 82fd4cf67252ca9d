"""Conversion of lines rendered by Rich to Textual strips."""

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from localspec.tui.rendering.palette import Palette

INDENT = 2
"""Cells to the left of a message: the bar of the selected one, and a blank."""

_MARGIN = Segment(" " * INDENT, Style.null())


def strip_of(segments: Iterable[Segment], width: int) -> Strip:
    """A line of `width` cells after the margin."""
    parts = [Segment(s.text, s.style or Style.null()) for s in segments if not s.control]
    return Strip([_MARGIN, *parts]).simplify().adjust_cell_length(width + INDENT)


def margin(strip: Strip) -> int:
    """Characters to the left of a line's text; in code, including the padding of its background."""
    at = 0
    for segment in strip:
        if segment.text[:1] == " " and segment.style and segment.style.bgcolor is not None:
            return at + 1
        if segment.text.strip():
            break
        at += len(segment.text)
    return INDENT


def wrap_text(text: Text, width: int, palette: Palette) -> list[Strip]:
    """Wrap a text to lines of at most `width` cells."""
    console = palette.console
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    return [strip_of(line, width) for line in lines]


def restyle(strip: Strip, span: tuple[int, int], style: Style, palette: Palette) -> Strip:
    """Apply a style to a span of a line's characters; -1 is the end of its text."""
    text = Text.assemble(*((part.text, part.style or "") for part in strip), end="")
    start, end = span
    text.stylize(style, start, len(text.plain.rstrip()) if end == -1 else end)
    return Strip(text.render(palette.console))
