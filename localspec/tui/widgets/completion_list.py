"""The list of completions above the input."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from localspec.tui.rendering.palette import Palette
from localspec.tui.session.commands import CommandCompletion


class Completions(OptionList, can_focus=False):
    """Shows completions, one of them chosen; the keys stay with the input."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id, compact=True)
        self._all: Sequence[CommandCompletion] = ()
        self.display = False

    def offer(self, completions: Sequence[CommandCompletion]) -> None:
        self._all = completions
        self.display = bool(completions)
        self.clear_options()
        if not completions:
            return
        palette = Palette.of(self.app)
        width = max(len(c.label) for c in completions) + 2
        for completion in completions:
            text = Text(completion.label.ljust(width), palette.style("accent"), no_wrap=True)
            text.append(completion.about, palette.faint)
            self.add_option(Option(text))
        self.highlighted = 0

    def move(self, step: int) -> None:
        if step < 0:
            self.action_cursor_up()
        else:
            self.action_cursor_down()

    @property
    def chosen(self) -> CommandCompletion | None:
        """What Enter would take."""
        return None if self.highlighted is None else self._all[self.highlighted]
