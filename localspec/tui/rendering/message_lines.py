"""Rendering of messages to lines of the screen, which are drawn on demand."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

from rich.text import Text
from textual.selection import Selection
from textual.strip import Strip

from localspec.chat import words
from localspec.chat.conversation import REPEATS, Message
from localspec.chat.figures import Figures, Rejected, Span
from localspec.chat.titles import one_line
from localspec.prompting.reasoning import split_thoughts
from localspec.text import counted, harmless
from localspec.tui.rendering.palette import INDENT, Palette, margin, strip_of, wrap_text

if TYPE_CHECKING:
    from localspec.tui.rendering.markdown_lines import MarkdownLines

Place = tuple[int, int]
"""(number, count) of a message among its siblings."""
MARGIN = " ▌"
"""Characters to the left of a line's text: blanks, and the bars of quotes."""
LONGEST = 100_000
"""Minimum characters drawn of a longer text: its last ones, at most twice as many."""
_UNBROKEN = 4_000
"""Line width in cells at which most paragraphs need no break."""


def token_lines(
    text: str, spans: Sequence[Span], rejected: Sequence[Rejected], width: int, palette: Palette
) -> list[Strip]:
    """Lines of `width` cells after the margin, with tokens coloured by source.

    Text beyond `spans` is attributed to the target; `rejected` proposals are struck through.
    """
    marked = Text(no_wrap=False, end="")
    proposals = deque(rejected)
    at = 0
    for count, source in (*spans, (len(text), "target")):
        until = min(at + count, len(text))
        style = palette.mark(source).style
        while proposals and proposals[0][0] <= until:
            place, proposal = proposals.popleft()
            marked.append(harmless(text[at:place]), style)
            at = max(at, place)
            marked.append(harmless(proposal).replace("\n", "↵"), palette.rejected)
        marked.append(harmless(text[at:until]), style)
        at = max(at, until)
    return wrap_text(marked, width, palette)


def legend(palette: Palette, sources: Sequence[str], *, rejected: bool, width: int = 0) -> Text:
    """The marks in one line; shapes are omitted if it is wider than `width`."""
    marks = [(mark.name, mark.style, mark.shape) for mark in map(palette.mark, sources)]
    if rejected:
        marks.append(("rejected", palette.rejected, "struck through"))
    whole = sum(len(name) + len(shape) + 3 for name, _, shape in marks) - 2
    line = Text()
    for name, style, shape in marks:
        if line:
            line.append("  ")
        line.append(name, style)
        if not width or whole <= width:
            line.append(f" {shape}", palette.faint)
    return line


@dataclass(frozen=True, slots=True)
class DisplayMode:
    """How messages are shown: as Markdown, or as `tokens` by source, also `rejected` ones."""

    palette: Palette
    tokens: bool = False
    rejected: bool = False


class MessageLines:
    """Draws a message, and caches its lines until `changed` is called. `place`: (number, count)
    among its siblings, from 1; `same`: number of leading lines that the last drawing did not
    change; `height`: number of lines, an estimate until `measured`."""

    def __init__(self, message: Message, place: Place = (1, 1)) -> None:
        self.message = message
        self.place = place
        self.height, self.measured = 0, False
        self._markdown: MarkdownLines | None = None
        self._drawn: tuple[int, DisplayMode] | None = None
        self._strips: list[Strip] = []
        self.same = 0

    def changed(self) -> None:
        self._drawn = None

    def strips(self, width: int, mode: DisplayMode) -> list[Strip]:
        """Lines of `width` cells, margin included; the last one is empty."""
        if self._drawn != (width, mode):
            self._drawn = (width, mode)
            before, self._strips = self._strips, list(self._draw(max(1, width - INDENT), mode))
            pairs = zip(before, self._strips, strict=False)
            self.same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return self._strips

    def estimate(self, width: int) -> int:
        """Estimate the number of lines without drawing."""
        if self._drawn is not None and self._drawn[0] == width:
            return len(self._strips)
        room = max(1, width - INDENT)
        text = self.message.content[-2 * LONGEST :]
        lines = sum(max(1, math.ceil(len(line) / room)) for line in text.splitlines() or [""])
        return 2 + lines + (self.message.role == "assistant")

    def letters_above(self, row: int) -> int:
        """Number of letters and digits above a line of the last drawing."""
        return sum(map(_letters, self._strips[:row]))

    def row_after(self, letters: int) -> int:
        """The line of the text that follows this number of letters and digits."""
        until = enumerate(accumulate(map(_letters, self._strips)))
        return next((row for row, count in until if count > letters), 0)

    def ends(self, width: int, mode: DisplayMode) -> list[str]:
        """The text's separator at the end of each line: a line feed, or, if the line was wrapped, a
        blank or nothing. Cells of tables keep their lines."""
        wide = MessageLines(self.message, self.place).strips(_UNBROKEN, mode)
        lines, at = [strip.text.strip(MARGIN) for strip in wide], 0
        found: list[str] = []
        rest = ""
        for part in (strip.text.strip(MARGIN) for strip in self.strips(width, mode)):
            after = rest.lstrip()
            if part and after.startswith(part):  # wrapped
                found[-1] = rest[: len(rest) - len(after)]
            else:
                same = (n for n in range(at, len(lines)) if lines[n].startswith(part))
                number = next(same, None)
                after, at = (part, at) if number is None else (lines[number], number + 1)
            rest = after[len(part) :]
            found.append("\n")
        return found

    def _draw(self, width: int, mode: DisplayMode) -> Iterable[Strip]:
        yield self._head(width, mode.palette)
        yield from self._body(width, mode)
        for text in self._foot(mode.palette):
            yield from wrap_text(text, width, mode.palette)
        yield strip_of([], width)

    def _head(self, width: int, palette: Palette) -> Strip:
        message = self.message
        mine = message.role == "user"
        name = "You" if mine else harmless(message.model or "Assistant")
        head = Text(no_wrap=True, overflow="ellipsis", end="")
        head.append(name, palette.style("accent" if mine else "primary", bold=True))
        number, count = self.place
        if count > 1:
            head.append(f"  ‹ {number}/{count} ›", palette.style("warning"))
        head.append(f"  {_when(message.created)}", palette.faint)
        head.truncate(width, overflow="ellipsis")
        return strip_of(head.render(palette.console), width)

    def _body(self, width: int, mode: DisplayMode) -> Iterable[Strip]:
        message, palette = self.message, mode.palette
        for attachment in message.attachments:
            what = counted(attachment.text.removesuffix("\n").count("\n") + 1, "line")
            if attachment.image is not None:
                what = "an image"
            text = f"+ {one_line(attachment.name)}, {what}"
            yield from wrap_text(Text(text, palette.style("accent")), width, palette)
        # In steps: if the cut moved with each token, all of a growing text would be redrawn.
        left_out = 0 if mode.tokens else LONGEST * max(0, len(message.content) // LONGEST - 1)
        content = message.content[left_out:]
        if left_out:
            note = f"■ {left_out:,} characters before these are not shown: c copies all"
            yield from wrap_text(Text(note, palette.faint), width, palette)
        if message.role == "user":
            yield from wrap_text(Text(harmless(content)), width, palette)
        elif mode.tokens:
            yield from token_lines(
                message.content,
                message.spans or (),
                message.rejected if mode.rejected else (),
                width,
                palette,
            )
        else:
            reasoning, text = split_thoughts(content)
            if reasoning.strip():
                yield from wrap_text(Text(harmless(reasoning), palette.faint), width, palette)
                yield strip_of([], width)
            yield from self._render_markdown(harmless(text), width, palette)

    def _render_markdown(self, text: str, width: int, palette: Palette) -> Iterable[Strip]:
        if self._markdown is None:
            # Imports a parser and a highlighter, which would delay the first paint.
            from localspec.tui.rendering.markdown_lines import MarkdownLines

            self._markdown = MarkdownLines()
        return self._markdown.render(text, width, palette)

    def _foot(self, palette: Palette) -> Iterable[Text]:
        message = self.message
        if message.note is not None:
            yield Text(message.note, palette.faint)
        elif message.state == "stopped":
            yield Text("■ stopped", palette.style("warning"))
        elif message.state == "interrupted":
            yield Text("■ localspec ended during this answer", palette.style("warning"))
        elif message.state == "failed":
            cause = (message.stats or {}).get("error") or "the answer failed"
            yield Text(f"✗ {harmless(str(cause))}", palette.style("error"))
        elif message.state == "unsent":
            yield Text("■ not sent: r sends it again", palette.style("warning"))
        elif message.finish_reason == "length":
            at_end = Figures.from_dict(message.stats)
            full = 0 < at_end.context_length <= at_end.context_used + 1
            limit = "the context is full" if full else "max_tokens is reached (/set max_tokens N)"
            yield Text(f"■ cut off: {limit}", palette.faint)
        elif message.finish_reason == REPEATS:
            what = "/set repeat_penalty 1.1 often helps, /set max_tokens N allows repetition"
            yield Text(f"■ ended: the answer repeated itself. {what}", palette.style("warning"))
        if message.role == "assistant" and message.stats and message.note is None:
            figures = words.line(Figures.from_dict(message.stats), draft=message.draft)
            if figures:
                yield Text(figures, palette.faint)


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
        shown = range(self.at(first), self.at(last) + 1)
        ends = {n: item.ends(width, mode) for n, item in enumerate(self.items) if n in shown}
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


def prepare(palette: Palette) -> None:
    """Load parser and highlighter before the first answer. Thread-safe."""
    from localspec.tui.rendering.markdown_lines import MarkdownLines

    MarkdownLines().render("Some `code`:\n\n- of\n\n```python\nthis = 'kind'\n```\n", 40, palette)


def _letters(strip: Strip) -> int:
    return sum(map(str.isalnum, strip.text))


def _when(seconds: float) -> str:
    then, now = datetime.fromtimestamp(seconds), datetime.now()
    if then.date() == now.date():
        return then.strftime("%H:%M")
    return then.strftime("%d %b %H:%M" if then.year == now.year else "%d %b %Y")
