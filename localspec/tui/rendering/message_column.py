"""A column of messages, drawn on demand."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from textual.selection import Selection
from textual.strip import Strip

from localspec.chat.conversation import Message
from localspec.tui.rendering.message_lines import MARGIN, DisplayMode, MessageLines
from localspec.tui.rendering.strips import margin

Place = tuple[int, int]
"""(number, count) of a message among its siblings."""


class MessageColumn:
    """Maps lines to messages. Heights are estimated until a message is drawn."""

    def __init__(self) -> None:
        self.items: list[MessageLines] = []
        self._index: dict[str, int] = {}
        self._starts = [0]

    def show(self, messages: Sequence[tuple[Message, Place]]) -> None:
        """Replace the messages; call `estimate` afterwards."""
        known = {item.message.id: item for item in self.items}
        self.items = []
        for message, place in messages:
            item = known.get(message.id) or MessageLines(message, place)
            item.message, item.place = message, place
            item.changed()
            self.items.append(item)
        self._index = {item.message.id: number for number, item in enumerate(self.items)}

    def number(self, message: str | None) -> int | None:
        """Index of a message by id; None if it is not here."""
        return None if message is None else self._index.get(message)

    def estimate(self, width: int) -> None:
        """Estimate all heights again."""
        for item in self.items:
            item.height, item.measured = item.estimate(width), False
        self._starts = [0, *accumulate(item.height for item in self.items)]

    def measure(self, number: int, width: int, mode: DisplayMode) -> int:
        """Draw a message; returns the difference between its height and the estimate."""
        item = self.items[number]
        before, item.height = item.height, len(item.strips(width, mode))
        item.measured = True
        if item.height != before:
            self._starts = [0, *accumulate(item.height for item in self.items)]
        return item.height - before

    @property
    def total(self) -> int:
        return self._starts[-1]

    def start(self, number: int) -> int:
        """The first line of a message."""
        return self._starts[number]

    def at(self, line: int) -> int:
        """Index of the message at a line; the nearest one for lines outside."""
        return max(0, min(bisect_right(self._starts, line), len(self.items)) - 1)

    def strip(self, line: int, width: int, mode: DisplayMode) -> tuple[Strip | None, str | None]:
        """A line, and its message's id; None for the empty line below a message."""
        number = self.at(line)
        strips = self.items[number].strips(width, mode)
        row = line - self.start(number)
        if row >= len(strips):
            return None, None
        return strips[row], self.items[number].message.id if row < len(strips) - 1 else None

    def text(self, selection: Selection, width: int, mode: DisplayMode) -> str:
        """The selected text, with its own line breaks instead of the screen's."""
        last = self.total - 1
        first = 0 if selection.start is None else max(0, selection.start.y)
        if selection.end is not None:
            last = min(last, selection.end.y)
        ends = {
            n: self.items[n].ends(width, mode) for n in range(self.at(first), self.at(last) + 1)
        }
        found, before = "", "\n"
        for line in range(first, last + 1):
            number = self.at(line)
            strip, _ = self.strip(line, width, mode)
            start, end = selection.get_span(line) or (0, -1)
            text = ""
            if strip is not None:
                text = strip.text[max(start, margin(strip)) : None if end == -1 else end].rstrip()
            found += text if before == "\n" else text.lstrip(MARGIN)
            row = line - self.start(number)
            before = ends[number][row] if row < len(ends[number]) else "\n"
            found += before if line < last else ""
        return found
