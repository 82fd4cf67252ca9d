"""Textual's widgets for texts and choices, without some of their faults."""

import re
from typing import Any, Literal

from rich.cells import split_graphemes
from textual import events
from textual.document._document import Location
from textual.geometry import Offset, Size
from textual.strip import Strip
from textual.widgets import OptionList, TextArea

_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")


class Options(OptionList):
    """Textual's list, also for keys and clicks that come before it is drawn again."""

    def _move_page(self, direction: Literal[-1, 1]) -> None:
        if (self.highlighted or 0) in self._index_to_line:  # else it has no lines yet
            super()._move_page(direction)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return super().get_content_height(container, viewport, max(width, 3))  # with a padding

    def _on_click(self, event: events.Click) -> Any:
        if event.style.meta.get("option", 0) >= self.option_count:
            event.prevent_default()


class TextInput(TextArea):
    """Textual's input for several lines, also for undo, low terminals and accents."""

    def scroll_cursor_visible(self, center: bool = False, animate: bool = False) -> Offset:
        # While an undo shortens the text, the cursor is behind its end for a moment.
        inside = self.cursor_location[0] < self.document.line_count
        return super().scroll_cursor_visible(center, animate) if inside else Offset(0, 0)

    def render_line(self, y: int) -> Strip:
        # While a terminal shrinks, the input may have no width between two layouts, and Textual
        # fails to wrap a placeholder to that.
        return super().render_line(y) if self.content_size.width > 0 else Strip([])

    def get_cursor_left_location(self) -> Location:
        return self._beside(super().get_cursor_left_location(), -1)

    def get_cursor_right_location(self) -> Location:
        return self._beside(super().get_cursor_right_location(), 1)

    def _beside(self, location: Location, step: int) -> Location:
        """Move a location out of what several characters draw: an emoji, a flag, an accent."""
        row, column = location
        line = self.document.get_line(row)
        if not line.isascii():
            drawn = [flag.span() for flag in _FLAG.finditer(line)]
            drawn += [span[:2] for span in split_graphemes(line)[0]]
            for start, end in drawn:
                if start < column < end:
                    column = start if step < 0 else end
        return row, column
