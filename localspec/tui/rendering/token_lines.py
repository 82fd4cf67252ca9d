"""An answer's raw text with each token marked by its source."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.strip import Strip

from localspec.chat.provenance import Rejected, Span
from localspec.text import harmless
from localspec.tui.rendering.palette import Palette
from localspec.tui.rendering.strips import wrapped


def token_lines(
    text: str, spans: Sequence[Span], rejected: Sequence[Rejected], width: int, palette: Palette
) -> list[Strip]:
    """Lines of `width` cells behind the margin.

    Text beyond `spans` counts as the target's; `rejected` proposals are struck through.
    """
    marked = Text(no_wrap=False, end="")
    falls = iter(rejected)
    fall = next(falls, None)
    at = 0

    def put(until: int, source: str) -> None:
        nonlocal at, fall
        style = palette.mark(source).style
        while fall is not None and fall.at <= until:
            marked.append(harmless(text[at : fall.at]), style)
            at = max(at, fall.at)
            marked.append(_shown(fall), palette.fallen)
            fall = next(falls, None)
        marked.append(harmless(text[at:until]), style)
        at = max(at, until)

    for count, source in spans:
        put(min(at + count, len(text)), source)
    put(len(text), "target")
    return wrapped(marked, width, palette)


def legend(palette: Palette, sources: Sequence[str], *, rejected: bool, width: int = 0) -> Text:
    """The marks in one line; shapes are left out where it is wider than `width`."""
    marks = [(mark.name, mark.style, mark.shape) for mark in map(palette.mark, sources)]
    if rejected:
        marks.append(("rejected", palette.fallen, "struck through"))
    whole = sum(len(name) + len(shape) + 3 for name, _, shape in marks) - 2
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, style, shape in marks:
        if line:
            line.append("  ")
        line.append(name, style)
        if not width or whole <= width:
            line.append(f" {shape}", palette.faint)
    return line


def _shown(fall: Rejected) -> str:
    return harmless(fall.text).replace("\n", "↵")
