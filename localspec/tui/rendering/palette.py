"""Colours and marks of the conversation, derived from the theme, and lines drawn with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from io import StringIO
from typing import Any
from zlib import crc32

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.strip import Strip

INDENT = 2
"""Cells to the left of a message: the bar of the selected one, and a blank."""

_MARGIN = Segment(" " * INDENT, Style.null())


@dataclass(frozen=True, slots=True)
class Mark:
    """How a source of tokens is shown; `shape` distinguishes it without colours."""

    name: str
    style: Style
    shape: str


class Palette:
    """Rich styles of a theme; one object per theme, used as a cache key."""

    faint, rejected = Style(dim=True), Style(dim=True, strike=True)

    def __init__(self, variables: Mapping[str, str], *, dark: bool) -> None:
        self._variables = dict(variables)
        self.dark = dark
        self.code_theme = "github-dark" if dark else "default"

    @classmethod
    def of(cls, app: App[Any]) -> Palette:
        return _palette(tuple(sorted(app.theme_variables.items())), app.current_theme.dark)

    def colour(self, name: str) -> str:
        """A colour of the theme for Rich, without alpha."""
        value = self._variables.get(name, "")
        if value.startswith("#") and len(value) >= 7:
            return value[:7]
        if value.startswith("ansi_"):
            return value.removeprefix("ansi_")
        return "default"

    def style(self, name: str, *, bold: bool = False) -> Style:
        """A colour of the theme in its readable shade."""
        shade = f"text-{name}" if self._variables.get(f"text-{name}", "").startswith("#") else name
        return Style(color=self.colour(shade), bold=bold or None)

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """Marks by source, in colours for common colour blindness (Okabe and Ito 2008)."""
        blue, orange, pink = (
            ("#56b4e9", "#e69f00", "#cc79a7") if self.dark else ("#0072b2", "#b35900", "#a0467a")
        )
        block = Mark("block head", Style(color=pink, underline2=True), "double underlined")
        return {
            "target": Mark("the model itself", Style(), "plain"),
            "ngram": Mark("n-gram", Style(color=blue, underline=True), "underlined"),
            "model": Mark("draft model", Style(color=orange, bold=True), "bold"),
            "eagle": Mark("trained head", Style(color=pink, bold=True), "bold"),
            "mtp": Mark("MTP layer", Style(color=pink, bold=True), "bold"),
            "medusa": Mark("trained heads", Style(color=pink, underline=True), "underlined"),
            "dflash": block,
            "dspark": block,
            "cascade": Mark("cascade", Style(color=pink, italic=True, bold=True), "italic"),
        }

    def mark(self, source: str) -> Mark:
        """The mark of a source; the colour of an unknown one depends only on its name."""
        kind, _, way = source.partition(":")
        known = self.marks.get(kind)
        if known is None:
            dark, light = ("#009e73", "#d55e00", "#f0e442"), ("#00694d", "#a34700", "#6b6300")
            colours = dark if self.dark else light  # others of the same set
            style = Style(color=colours[crc32(kind.encode()) % 3], underline2=True)
            known = Mark(kind, style, "double underlined")
        return replace(known, name=f"{known.name}, {way}") if way else known

    @cached_property
    def console(self) -> Console:
        """A console for rendering; nothing is printed to it."""
        from rich.theme import Theme

        accent, primary = self.colour("text-accent"), self.colour("text-primary")
        panel, muted = self.colour("panel"), self.colour("text-secondary")
        styles = {
            "code": f"{accent} on {panel}",
            "code_block": f"on {panel}",
            "h1": f"bold underline {primary}",
            "h2": f"bold {primary}",
            "h3": f"bold {primary}",
            "h4": f"italic {primary}",
            "block_quote": f"italic {muted}",
            "item.bullet": f"bold {accent}",
            "item.number": f"{accent}",
            "list": "none",
            "link": f"{primary} underline",
            "link_url": f"{primary} underline",
            "table.header": f"bold {primary}",
            "table.border": f"{muted}",
        }
        return Console(
            file=StringIO(),
            width=80,
            color_system="truecolor",
            force_terminal=True,
            legacy_windows=False,
            no_color=False,
            highlight=False,
            markup=False,
            emoji=False,
            theme=Theme({f"markdown.{name}": style for name, style in styles.items()}),
        )


@lru_cache(maxsize=4)
def _palette(variables: tuple[tuple[str, str], ...], dark: bool) -> Palette:
    return Palette(dict(variables), dark=dark)


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
