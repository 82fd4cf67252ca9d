"""The panels: beside the conversation, or over it where the screen is narrow."""

from __future__ import annotations

from typing import Protocol

from localspec.tui.control.screen_parts import ScreenParts
from localspec.tui.preferences import Preferences
from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.sidebar import Sidebar

Panel = Sidebar | FiguresPanel
_NAMES: dict[type[Panel], str] = {Sidebar: "sidebar", FiguresPanel: "figures"}
"""What the preferences call them."""


class PreferencesKeeper(Protocol):
    """Who has the preferences, and writes them down."""

    preferences: Preferences

    def save_preferences(self) -> None: ...


class Panels:
    """Folds and unfolds them, and remembers it."""

    def __init__(self, keeper: PreferencesKeeper, parts: ScreenParts) -> None:
        self._keeper = keeper
        self._parts = parts

    def restore(self) -> None:
        """As they were left the last time."""
        for kind, name in _NAMES.items():
            self._fold(kind, getattr(self._keeper.preferences, name))

    def toggle(self, kind: type[Panel]) -> None:
        """Open one that is shut, shut one that is open."""
        panel = self._parts.widget(kind)
        show = not panel.display
        if self._parts.narrow:
            panel.set_class(show, "over")
        else:
            self._fold(kind, show)
            setattr(self._keeper.preferences, _NAMES[kind], show)
            self._keeper.save_preferences()
        if not show and not self._parts.prompt.has_focus:
            self._parts.prompt.focus()

    def uncover(self) -> None:
        """Take away what lies over the conversation, and go on writing."""
        for kind in _NAMES:
            self._parts.widget(kind).remove_class("over")
        # At once: `focus` waits its turn, and would take what has been gone to meanwhile.
        self._parts.prompt.screen.set_focus(self._parts.prompt)

    def _fold(self, kind: type[Panel], show: bool | None) -> None:
        """Beside the conversation; None goes by the width."""
        panel = self._parts.widget(kind)
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")
