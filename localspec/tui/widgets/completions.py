"""The list of completions above the input."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import Static

from localspec.tui.rendering.palette import Palette
from localspec.tui.session.commands import CommandCompletion

ROWS = 8


class Completions(Static):
    """Shows ways to go on, one of them chosen. The keys stay with the input."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._all: Sequence[CommandCompletion] = ()
        self._chosen = 0
        self.display = False

    def offer(self, completions: Sequence[CommandCompletion]) -> None:
        """Show these; none hides the list."""
        self._all, self._chosen = completions, 0
        self.display = bool(completions)
        self._draw()

    def move(self, step: int) -> None:
        """Choose the one above or below."""
        if self._all:
            self._chosen = (self._chosen + step) % len(self._all)
            self._draw()

    @property
    def chosen(self) -> CommandCompletion | None:
        """What Enter would take."""
        return self._all[self._chosen] if self._all else None

    def _draw(self) -> None:
        if not self._all:
            return
        palette = Palette.of(self.app)
        first = max(0, min(self._chosen - ROWS // 2, len(self._all) - ROWS))
        shown = self._all[first : first + ROWS]
        width = max(len(c.label) for c in shown) + 2
        text = Text(no_wrap=True, overflow="ellipsis")
        for number, completion in enumerate(shown, start=first):
            chosen = number == self._chosen
            text.append("▸ " if chosen else "  ", palette.style("accent"))
            text.append(completion.label.ljust(width), palette.style("accent", bold=chosen))
            text.append(completion.about, palette.faint)
            text.append("\n")
        text.rstrip()
        self.update(text)
