"""The conversation in one scrolling widget that draws only visible lines."""

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from localspec.chat.conversation import Message
from localspec.tui.rendering.message_lines import DisplayMode, MessageColumn, Place
from localspec.tui.rendering.palette import Palette, restyle

JUMP = 3
"""After a scroll step, 1 ÷ JUMP of the page is free below a growing answer."""


class Transcript(ScrollView, can_focus=True):
    """Shows one branch of a conversation.

    Heights of messages out of view are estimated; they are measured on scrolling without moving
    visible lines. `tokens`, `rejected`: see `DisplayMode`; `following`: whether to keep the end in
    view.
    """

    BINDING_GROUP_TITLE = "Conversation"
    FOCUS_ON_CLICK = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,w", "app.message('why')", "Why this speed"),
        Binding("up,k", "select(-1)", "Message above", show=False),
        Binding("down,j", "select(1)", "Message below", show=False),
        Binding("pageup", "page_up", "Page up", show=False),
        Binding("pagedown", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_home", "First message", show=False),
        Binding("end,G", "scroll_end", "Last message", show=False),
        Binding("c", "app.message('copy')", "Copy message"),
        Binding("b", "app.message('copy', 'code')", "Copy code block"),
        Binding("r", "app.message('regenerate')", "Answer again"),
        Binding("e", "app.message('edit')", "Edit and resend"),
        Binding("left,h", "app.message('branch', 'previous')", "Branch before", show=False),
        Binding("right,l", "app.message('branch', 'next')", "Branch after", show=False),
    ]

    tokens: reactive[bool] = reactive(False)
    rejected: reactive[bool] = reactive(False)

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._column = MessageColumn()
        self._welcome: Sequence[Text] = ()
        self._room = 0  # lines below the end that an answer may grow into
        self._selected: str | None = None
        self.following = True
        self._showing: DisplayMode | None = None
        self._style: Style | None = None
        self._width = 0

    # Content

    def show(self, messages: Sequence[tuple[Message, Place]]) -> None:
        self._column.show(messages)
        if self._column.number(self._selected) is None:
            self._selected = None
        self.following = True
        self._estimate_all()

    def welcome(self, lines: Sequence[Text]) -> None:
        self._welcome = lines
        if not self._column.items:
            self.refresh()

    def update_message(self, message: Message) -> None:
        number = self._column.number(message.id)
        if number is None:
            return
        item = self._column.items[number]
        item.message = message
        item.changed()
        self._measure(number)
        self._settle(drawn=number)

    @property
    def selected(self) -> Message | None:
        """The message that keys act on: the selected one, else the last."""
        items, number = self._column.items, self._column.number(self._selected)
        if number is not None:
            return items[number].message
        return items[-1].message if items else None

    def select_message(self, message: str | None) -> None:
        """Select a message by id, and scroll it into view."""
        number = self._column.number(message)
        self._selected = None if number is None else message
        if number is not None:
            self._measure(number)
            top, height = self._column.start(number), self._column.items[number].height
            page = self.scrollable_content_region.height
            if top < self.scroll_offset.y or height > page:
                self._scroll(top)
            elif top + height > self.scroll_offset.y + page:
                self._scroll(top + height - page)
        self._settle()
        self.refresh()

    # Drawing

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        line = self.scroll_offset.y + y
        blank = Strip.blank(width, self._ground)
        if not 0 <= line < self._column.total:
            return self._welcome_line(y) or blank
        strip, message = self._column.strip(line, width, self._showing_now())
        if strip is None:
            return blank
        if message is not None and message == self._selected:
            bar = Segment("▌", self._showing_now().palette.style("accent"))
            strip = Strip([bar, *strip.crop(1)])
        # Textual caches the result with the strip, so repeating this is cheap.
        strip = strip.apply_style(self._ground)
        return self._with_selection(strip, line).apply_offsets(0, line)

    def _welcome_line(self, y: int) -> Strip | None:
        region = self.scrollable_content_region
        console = self._showing_now().palette.console
        rows = [row for line in self._welcome for row in line.wrap(console, max(1, region.width))]
        row = y - max(0, (region.height - len(rows)) // 2)
        if self._column.items or not 0 <= row < len(rows):
            return None
        text = rows[row]
        text.end = ""
        text.align("center", region.width)
        strip = Strip(text.render(console)).adjust_cell_length(region.width)
        return strip.apply_style(self._ground)

    def _with_selection(self, strip: Strip, line: int) -> Strip:
        selection = self.text_selection
        span = None if selection is None else selection.get_span(line)
        if span is None:
            return strip
        palette = self._showing_now().palette
        style = Style(bgcolor=palette.colour("primary-muted"), reverse=None)
        return restyle(strip, span, style, palette)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        width = self.scrollable_content_region.width
        return self._column.text(selection, width, self._showing_now()), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    # Heights

    def _showing_now(self) -> DisplayMode:
        if self._showing is None:
            self._showing = DisplayMode(Palette.of(self.app), self.tokens, self.rejected)
        return self._showing

    @property
    def _ground(self) -> Style:
        """The widget's style, cached: it is slow to compute for each line."""
        if self._style is None:
            self._style = self.rich_style
        return self._style

    def _estimate_all(self) -> None:
        width = self.scrollable_content_region.width
        self._width = width
        self._column.estimate(width)
        self._settle()
        self.refresh()

    def _measure(self, number: int) -> int:
        width = self.scrollable_content_region.width
        return self._column.measure(number, width, self._showing_now())

    def _settle(self, drawn: int | None = None) -> None:
        """Measure visible messages without moving them. `drawn`: the only message that has changed,
        to repaint less."""
        page = self.scrollable_content_region.height
        if not self._column.items or page <= 0:
            self.virtual_size = Size(0, self._column.total)
            return
        if self.following:
            left = page
            for number, item in reversed([*enumerate(self._column.items)]):
                if not item.measured:
                    self._measure(number)
                left -= item.height
                if left <= 0:
                    break
            self._follow(page, drawn)
            return
        top = self.scroll_offset.y
        number = self._column.at(top)
        while number < len(self._column.items) and self._column.start(number) < top + page:
            if not self._column.items[number].measured:
                above = self._column.start(number) < top
                off = self._measure(number)
                if above and off:  # keep its end in place
                    top = max(self._column.start(number), top + off)
            number += 1
        self._fit()
        if top != self.scroll_offset.y:
            self._scroll(top)
        if drawn is None or self._column.start(drawn) < top + page:
            self.refresh()

    def _follow(self, page: int, drawn: int | None) -> None:
        """Keep the end in view.

        A growing answer scrolls by a part of the page at a time: scrolling by each new line would
        repaint the page each time, and moving text is hard to read.
        """
        total = self._column.total
        if drawn is None:
            self._room = 0
        else:
            self._room = self.scroll_offset.y + page - total if total > page else 0
            if not 0 <= self._room <= page // JUMP:
                self._room = page // JUMP
        self._fit()
        end = max(0, total + self._room - page)
        moved = end != self.scroll_offset.y
        self._scroll(end)
        if drawn is not None and not moved:
            self._refresh_from(self._column.start(drawn) + self._column.items[drawn].same)
        else:
            self.refresh()

    def at_rest(self) -> None:
        """Remove the room below the end, when no answer is growing."""
        if self._room:
            self._room = 0
            self._settle()

    def _fit(self) -> None:
        size = Size(self.scrollable_content_region.width, self._column.total + self._room)
        if size != self.virtual_size:
            # A normal assignment would lay out the whole screen, the most expensive part of a
            # redraw. Only the scrollbar depends on it.
            self.set_reactive(Transcript.virtual_size, size)
            self._scroll_update(size)

    def _refresh_from(self, line: int) -> None:
        first = max(line, self.scroll_offset.y)
        count = self.scroll_offset.y + self.scrollable_content_region.height - first
        self.refresh_lines(first, max(0, count))

    def _scroll(self, y: int) -> None:
        if y != self.scroll_offset.y:
            self.scroll_to(y=y, animate=False, force=True, immediate=True)

    # Actions of the user

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        # Scrolling up a little, even within the room, stops following.
        room = self._room if new_value < old_value else 0
        self.following = round(new_value) >= self._column.total + room - self._page
        if not self.following:
            self._settle()

    def watch_tokens(self) -> None:
        self._showing = None
        self._redraw()

    watch_rejected = watch_tokens

    def notify_style_update(self) -> None:
        """The theme has changed, or the focus."""
        super().notify_style_update()
        before, self._showing, self._style = self._showing, None, None
        if not (self.is_attached and self._column.items):
            return
        if before is not None and self._showing_now() == before:
            self._showing = before  # what was drawn for it is still right
            self.refresh()
        else:
            self._redraw()

    def on_resize(self, _event: events.Resize) -> None:
        if self.scrollable_content_region.width != self._width:
            self._redraw()
        else:
            self._settle()

    def _redraw(self) -> None:
        """All heights may have changed; the text at the top stays there."""
        if not self._column.items:
            self.refresh()
            return
        top, following = self.scroll_offset.y, self.following
        number = self._column.at(top)
        item = self._column.items[number]
        item.strips(self._width, self._showing_now())  # as it was, which a paint may have changed
        read = item.letters_above(top - self._column.start(number))
        self._estimate_all()
        if not following:
            self.following = False
            self._measure(number)
            self._fit()
            self._scroll(self._column.start(number) + item.row_after(read))
            self._settle()

    def action_select(self, step: int) -> None:
        selected = self._column.number(self._selected)
        if selected is None:
            number = len(self._column.items) - 1 if step < 0 else 0
        else:
            number = selected + step
        if 0 <= number < len(self._column.items):
            self.select_message(self._column.items[number].message.id)
        elif step > 0:
            self.action_scroll_end()

    def action_scroll_end(self) -> None:
        self.following = True
        self._settle()

    def action_scroll_home(self) -> None:
        self._scroll(0)

    def action_page_up(self) -> None:
        self._scroll(max(0, self.scroll_offset.y - self._page))

    def action_page_down(self) -> None:
        self._scroll(min(self.scroll_offset.y + self._page, self._column.total - self._page))

    @property
    def _page(self) -> int:
        return self.scrollable_content_region.height

    def on_click(self, event: events.Click) -> None:
        if self.screen.get_selected_text():
            return  # to be copied, after which the next message is written
        self.focus()
        line = self.scroll_offset.y + event.y
        if 0 <= line < self._column.total:
            number = self._column.at(line)
            self._selected = self._column.items[number].message.id
            self.refresh()
