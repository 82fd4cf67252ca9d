"""The list of conversations, newest first, and their search."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.reactive import var
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from localspec.chat.titles import one_line
from localspec.history.writer import HistoryWriter
from localspec.text import harmless
from localspec.tui.rendering.palette import Palette
from localspec.tui.widgets.inputs import Options

if TYPE_CHECKING:
    from localspec.history.statements import ConversationSummary, SearchHit


PAGE = 100
"""Conversations listed at first, and more of them near the end."""


class _Search(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "To the list")]


class _Conversations(Options):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select", "Open")]


class Sidebar(Vertical):
    """Conversations of the history in `store`, loaded as the user scrolls, or hits of a search.
    `open`: shows a conversation, and optionally a message in it; `delete`: asks, and deletes one;
    `leave`: goes back to the input. `newest`: the most recently updated conversation; None until
    the list is loaded."""

    BINDING_GROUP_TITLE = "List of conversations"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "to_list", "To the list", show=False),
        Binding("slash", "app.command('search')", "Search"),
        Binding("escape", "leave", "Back"),
        Binding("delete,x", "delete", "Delete"),
    ]
    newest: var[ConversationSummary | None] = var(None)

    def __init__(
        self,
        store: HistoryWriter,
        *,
        open: Callable[[str, str | None], object],
        delete: Callable[[str], object],
        leave: Callable[[], object],
    ) -> None:
        super().__init__(id="sidebar")
        self._store, self._open, self._delete, self._leave = store, open, delete, leave
        self._listed: dict[str, ConversationSummary] = {}
        self._most = PAGE
        self._current = ""
        self._field = _Search(placeholder="Search all", id="search", compact=True)
        self._options = _Conversations(id="conversations", compact=True)

    def compose(self) -> ComposeResult:
        yield self._field
        yield self._options

    @work(group="list", exclusive=True)
    async def list(self) -> None:
        """Load the list again."""

        def ask() -> Sequence[ConversationSummary]:
            self._store.flush(timeout=1.0)  # include pending writes
            return self._store.history.list(limit=self._most)

        found = await asyncio.to_thread(ask)
        self.newest = found[0] if found else None
        if self.searching:
            self._find(self.searching)
            return
        highlighted, row = self._highlighted(), self._options.highlighted
        self._listed = {summary.id: summary for summary in found}
        rows = [Option(self._row_text(each), id=each.id) for each in found]
        self._fill(rows, "No conversations yet")
        self._highlight(highlighted, row)

    @work(group="search", exclusive=True)
    async def _find(self, query: str) -> None:
        hits = await asyncio.to_thread(lambda: self._store.history.search(query, limit=PAGE))
        if self.searching != query:
            return
        palette, row, self._listed = Palette.of(self.app), self._options.highlighted, {}
        rows = [
            Option(_hit(hit, palette), id=f"{hit.conversation} {hit.message or ''}") for hit in hits
        ]
        self._fill(rows, "Nothing found")
        if hits and self.choosing:
            self._options.highlighted = min(row or 0, len(hits) - 1)

    def _fill(self, rows: Sequence[Option], nothing: str) -> None:
        empty = Option(Text(nothing, Palette.of(self.app).faint), disabled=True)
        self._options.set_options(rows or [empty])

    def mark(self, conversation: str) -> None:
        """Mark a conversation as the shown one."""
        changed, self._current = {self._current, conversation}, conversation
        for id in changed & self._listed.keys():
            prompt = self._row_text(self._listed[id])
            self._options.replace_option_prompt(id, prompt)

    def search(self, query: str) -> None:
        """Focus the search; "" keeps its query."""
        self._field.value = query or self._field.value
        # Not `focus`, which is deferred: keys typed meanwhile would go elsewhere.
        self.screen.set_focus(self._field)

    def focus_list(self) -> None:
        """Focus the list at its highlighted row, else at the shown conversation."""
        self.screen.set_focus(self._options)
        if self._highlighted() is None:
            self._options.action_first()
            self._highlight(None)

    @property
    def searching(self) -> str:
        """The search query; empty if all conversations are listed."""
        return self._field.value.strip()

    @property
    def choosing(self) -> bool:
        # `has_focus` is updated by a message, too late.
        return self.screen.focused is self._options

    def action_to_list(self) -> None:
        if any(option.id for option in self._options.options):
            self.focus_list()

    def action_leave(self) -> None:
        if self._field.value:
            self._field.value = ""
        else:
            self._leave()

    def action_delete(self) -> None:
        highlighted = self._highlighted()
        if highlighted is not None:
            self._delete(highlighted)

    @on(Input.Changed)
    def _search(self) -> None:
        if self.searching:
            self._find(self.searching)
        else:
            self.list()

    @on(Input.Submitted)
    def _to_list(self, event: Input.Submitted) -> None:
        self._options.action_first()
        if self.screen.focused is event.input:
            self.screen.set_focus(self._options)  # at once, as in `search`

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        conversation, _, message = (event.option_id or "").partition(" ")
        self._open(conversation, message or None)

    @on(OptionList.OptionHighlighted)
    def _near_the_end(self, event: OptionList.OptionHighlighted) -> None:
        if len(self._listed) == self._most and event.option_index >= self._most - 20:
            self._most += PAGE
            self.list()

    def _row_text(self, summary: ConversationSummary) -> Text:
        palette, current = Palette.of(self.app), summary.id == self._current
        text = Text()
        text.append("▌" if current else " ", palette.style("accent"))
        text.append(f"{ago(summary.updated):<6} ", palette.faint)
        text.append(one_line(summary.title), palette.style("foreground", bold=current))
        return text

    def _highlighted(self) -> str | None:
        """Id of the highlighted conversation."""
        option = self._options.highlighted_option
        return None if option is None else (option.id or "").partition(" ")[0] or None

    def _highlight(self, conversation: str | None, row: int | None = None) -> None:
        """Highlight a conversation, None for the shown one; if it is gone, the one in its row."""
        id = conversation or self._current
        if id in self._listed:
            self._options.highlighted = self._options.get_option_index(id)
        elif conversation and row is not None and self._listed:
            self._options.highlighted = min(row, len(self._listed) - 1)


def _hit(hit: SearchHit, palette: Palette) -> Text:
    text = Text()
    if hit.message is not None:  # else the hit is in the title
        text.append(one_line(hit.title), palette.style("primary", bold=True))
        text.append("\n")
    for part, found in hit.parts:
        part = harmless(part.replace("\n", " "))
        text.append(part, palette.style("accent", bold=True) if found else "")
    return text


def ago(seconds: float, now: datetime | None = None) -> str:
    now, then = now or datetime.now(), datetime.fromtimestamp(seconds)
    if then.date() == now.date():
        return then.strftime("%H:%M")
    if timedelta() < now - then < timedelta(days=7):  # the clock may have been ahead
        return then.strftime("%a")
    return then.strftime("%d %b" if then.year == now.year else "%b %Y")
