"""All conversations, newest first, and searching them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Protocol

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from localspec.text import harmless
from localspec.tui.rendering.palette import Palette

if TYPE_CHECKING:
    from localspec.history.history import ConversationSummary, SearchHit


class _Search(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "To the list")]


class _Conversations(OptionList):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Open")]


class Lister(Protocol):
    """Fills the list by `Sidebar.list` and `Sidebar.found`, and does what is wanted there."""

    def list(self, offset: int = 0) -> None: ...

    def search(self, query: str) -> None: ...

    def take(self, conversation: str, message: str | None) -> None: ...

    def delete(self, conversation: str) -> None: ...

    def leave(self) -> None: ...


class Sidebar(Vertical):
    """Conversations as far as scrolled, or hits of a search."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "to_list", "To the list", show=False),
        Binding("slash", "search", "Search"),
        Binding("escape", "leave", "Back"),
        Binding("delete,x", "delete", "Delete"),
    ]

    def __init__(self, lister: Lister, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lister = lister
        self._places: list[tuple[str, str | None]] = []
        self._summaries: list[ConversationSummary] = []
        self._asked = 0
        self._current: str | None = None

    def compose(self) -> ComposeResult:
        yield _Search(placeholder="Search all", id="search", compact=True)
        yield _Conversations(id="conversations", compact=True)

    def list(self, summaries: Sequence[ConversationSummary], *, more: bool = False) -> None:
        options = self.query_one(OptionList)
        if not more:
            highlighted = self._highlighted()
            self._places, self._summaries = [], []
            options.clear_options()
            self._asked = 0
        self._places += [(summary.id, None) for summary in summaries]
        self._summaries += summaries
        options.add_options([Option(self._titled(summary)) for summary in summaries])
        if not more:
            self._highlight(highlighted)
        if not self._places:
            nothing = Text("No conversations yet", Palette.of(self.app).faint)
            options.add_option(Option(nothing, disabled=True))

    def mark(self, conversation: str) -> None:
        """Mark the conversation that is shown."""
        changed = (self._current, conversation)
        self._current = conversation
        for number, summary in enumerate(self._summaries):
            if summary.id in changed:
                prompt = self._titled(summary)
                self.query_one(OptionList).replace_option_prompt_at_index(number, prompt)

    def found(self, hits: Sequence[SearchHit]) -> None:
        palette = Palette.of(self.app)
        options = self.query_one(OptionList)
        options.clear_options()
        self._places, self._summaries = [(hit.conversation, hit.message) for hit in hits], []
        self._asked = len(hits)
        if not hits:
            options.add_option(Option(Text("Nothing found", palette.faint), disabled=True))
        options.add_options([Option(_hit(hit, palette)) for hit in hits])
        if hits and self.choosing:
            options.highlighted = 0

    def action_search(self) -> None:
        # At once: `focus` waits its turn, and what is typed meanwhile would go elsewhere.
        self.screen.set_focus(self.query_one(Input))

    def focus_list(self) -> None:
        """Focus the list where it was, else on the shown conversation."""
        self.screen.set_focus(self.query_one(OptionList))
        if self._highlighted() is None and self._places:
            self.query_one(OptionList).highlighted = 0
            self._highlight(None)

    def search_for(self, query: str) -> None:
        self.query_one(Input).value = query

    @property
    def searching(self) -> str:
        """The search words; empty where all are listed."""
        return self.query_one(Input).value.strip()

    @property
    def choosing(self) -> bool:
        # `has_focus` changes by a message, and late.
        return self.screen.focused is self.query_one(OptionList)

    def action_to_list(self) -> None:
        if self._places:
            self.focus_list()

    def action_leave(self) -> None:
        search = self.query_one(Input)
        if search.value:
            search.value = ""
        else:
            self._lister.leave()

    def action_delete(self) -> None:
        place = self._highlighted()
        if place is not None:
            self._lister.delete(place)

    @on(Input.Changed)
    def _search(self, event: Input.Changed) -> None:
        event.stop()
        self._lister.search(event.value.strip())

    @on(Input.Submitted)
    def _to_list(self, event: Input.Submitted) -> None:
        event.stop()
        options = self.query_one(OptionList)
        if self._places:
            options.highlighted = 0
        if self.screen.focused is event.input:
            self.screen.set_focus(options)  # at once, as in `action_search`

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._places):
            self._lister.take(*self._places[event.option_index])

    @on(OptionList.OptionHighlighted)
    def _near_the_end(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        count = len(self._places)
        if event.option_index >= count - 20 and self._asked < count and not self.searching:
            self._asked = count
            self._lister.list(count)

    def _titled(self, summary: ConversationSummary) -> Text:
        palette, current = Palette.of(self.app), summary.id == self._current
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("▌" if current else " ", palette.style("accent"))
        text.append(f"{ago(summary.updated):<6} ", palette.faint)
        text.append(harmless(summary.title), palette.style("foreground", bold=current))
        return text

    @property
    def listed(self) -> int:
        """How many conversations the list has."""
        return len(self._summaries)

    def _highlighted(self) -> str | None:
        number = self.query_one(OptionList).highlighted
        if number is None or number >= len(self._places):
            return None
        return self._places[number][0]

    def _highlight(self, conversation: str | None) -> None:
        for number, (id, _) in enumerate(self._places):
            if id == (conversation or self._current):
                self.query_one(OptionList).highlighted = number
                return


def _hit(hit: SearchHit, palette: Palette) -> Text:
    text = Text(no_wrap=False)
    if hit.message is not None:  # else the title itself is what was found
        text.append(harmless(hit.title), palette.style("primary", bold=True))
        text.append("\n")
    for part, found in hit.parts:
        part = harmless(part.replace("\n", " "))
        text.append(part, palette.style("accent", bold=True) if found else "")
    return text


def ago(seconds: float, now: datetime | None = None) -> str:
    now, then = now or datetime.now(), datetime.fromtimestamp(seconds)
    if then.date() == now.date():
        return then.strftime("%H:%M")
    if now - then < timedelta(days=7):
        return then.strftime("%a")
    return then.strftime("%d %b" if then.year == now.year else "%b %Y")
