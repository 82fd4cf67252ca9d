"""One line of figures above the input."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from localspec.chat import words
from localspec.chat.figures import Figures
from localspec.text import harmless
from localspec.tui.rendering.palette import Palette


class StatusLine(Static):
    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: object = None

    def doing(self, text: str) -> None:
        palette = Palette.of(self.app)
        self._put(Text(f"◌ {harmless(text)}", palette.style("accent"), no_wrap=True))

    def figures(self, figures: Figures, draft: str | None, *, live: bool) -> None:
        palette = Palette.of(self.app)
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append("● " if live else "■ ", palette.style("success") if live else palette.faint)
        text.append(words.line(figures, draft=draft, now=live))
        off = words.off(figures)
        if off is not None:
            text.append(f"  {off}", palette.faint)
        self._put(text)

    def nothing(self, text: str = "") -> None:
        self._put(Text(harmless(text), "dim", no_wrap=True, overflow="ellipsis"))

    def _put(self, text: Text) -> None:
        if text != self._shown or text.spans != getattr(self._shown, "spans", None):
            self._shown = text
            self.update(text, layout=False)
