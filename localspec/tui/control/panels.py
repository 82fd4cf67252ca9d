"""The panels: beside the conversation, or over it on a narrow screen."""

from __future__ import annotations

from localspec.tui.control.host import Host
from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.sidebar import Sidebar

Panel = Sidebar | FiguresPanel
_NAMES: dict[type[Panel], str] = {Sidebar: "sidebar", FiguresPanel: "figures"}
"""Their names in the preferences."""


class Panels:
    def __init__(self, host: Host) -> None:
        self._host = host

    def restore(self) -> None:
        for kind, name in _NAMES.items():
            self._fold(kind, getattr(self._host.preferences, name))

    def toggle(self, kind: type[Panel]) -> None:
        panel = self._host.part(kind)
        show = not panel.display
        if self._host.narrow:
            panel.set_class(show, "over")
            self.fit()
        else:
            self._fold(kind, show)
            setattr(self._host.preferences, _NAMES[kind], show)
            self._host.save_preferences()
        if not show and not self._host.prompt.has_focus:
            self._host.prompt.focus()

    def fit(self) -> None:
        """Panels over the conversation end where it does: the input stays in view."""
        for kind in _NAMES:
            panel = self._host.part(kind)
            over = panel.has_class("over")
            panel.styles.height = self._host.transcript.outer_size.height if over else None

    def uncover(self) -> None:
        """Close what lies over the conversation, and focus the input."""
        for kind in _NAMES:
            self._host.part(kind).remove_class("over")
        # At once: `focus` waits its turn, and would take what has been gone to meanwhile.
        self._host.prompt.screen.set_focus(self._host.prompt)

    def _fold(self, kind: type[Panel], show: bool | None) -> None:
        """Beside the conversation; None goes by the width."""
        panel = self._host.part(kind)
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")
