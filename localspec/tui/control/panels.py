"""The panels: beside the conversation, or over it where the screen is narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.sidebar import Sidebar

if TYPE_CHECKING:
    from localspec.tui.app import ChatApp

Panel = Sidebar | FiguresPanel
_NAMES: dict[type[Panel], str] = {Sidebar: "sidebar", FiguresPanel: "figures"}
"""What the preferences call them."""


class Panels:
    """Folds and unfolds them, and remembers it."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    def restore(self) -> None:
        """As they were left the last time."""
        for kind, name in _NAMES.items():
            self._fold(kind, getattr(self._app.preferences, name))

    def toggle(self, kind: type[Panel]) -> None:
        """Open one that is shut, shut one that is open."""
        panel = self._app.part(kind)
        show = not panel.display
        if self._app.screen_stack[0].has_class("-narrow"):
            panel.set_class(show, "over")
        else:
            self._fold(kind, show)
            self._app.remember(**{_NAMES[kind]: show})
        if not show and not self._app.prompt.has_focus:
            self._app.prompt.focus()

    def uncover(self) -> None:
        """Take away what lies over the conversation, and go on writing."""
        for kind in _NAMES:
            self._app.part(kind).remove_class("over")
        self._app.prompt.focus()

    def _fold(self, kind: type[Panel], show: bool | None) -> None:
        """Beside the conversation; None goes by the width."""
        panel = self._app.part(kind)
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")
