"""Esc and Ctrl+C: the innermost thing that can end ends."""

from __future__ import annotations

from typing import Any, Protocol

from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import TextArea

from localspec.errors import Cancelled
from localspec.tui.control.conversation_display import ConversationDisplay
from localspec.tui.control.panels import Panels
from localspec.tui.control.screen_parts import ScreenParts
from localspec.tui.session.conversing import Conversing

TWICE = 2.0
"""Seconds within which a second Ctrl+C leaves."""


class StopHost(Protocol):
    """What can end with a key, the app itself last."""

    conversing: Conversing

    @property
    def screen(self) -> Screen[Any]: ...

    @property
    def focused(self) -> Widget | None: ...

    def copy(self, text: str) -> None: ...

    def tell(self, text: str) -> None: ...

    def exit(self, *, return_code: int) -> None: ...


class StopKeys:
    """Says what Esc and Ctrl+C mean just now, and does it."""

    def __init__(
        self, host: StopHost, parts: ScreenParts, panels: Panels, display: ConversationDisplay
    ) -> None:
        self._host = host
        self._parts = parts
        self._panels = panels
        self._display = display
        self._interrupted = -TWICE

    def escape(self) -> None:
        """Close what is open, else stop what runs."""
        if self._parts.composer.escape():
            return
        if self._runs():
            self._host.conversing.stop()
        else:
            self._panels.uncover()

    def interrupt(self, now: float) -> None:
        """Copy what is selected, else end a dialog, what runs, or, the second time, the chat.

        Args:
            now: seconds.
        """
        focused = self._host.focused
        selected = self._host.screen.get_selected_text()
        if not selected and isinstance(focused, TextArea):
            selected = focused.selected_text
        if selected:
            self._host.copy(selected)
        elif isinstance(self._host.screen, ModalScreen):
            self._host.screen.dismiss(None)
        elif self._runs():
            self._host.conversing.stop()
        elif now - self._interrupted < TWICE:
            self._host.exit(return_code=Cancelled.exit_code)
        else:
            self._interrupted = now
            self._host.tell("Ctrl+C again leaves. Everything is kept.")

    def _runs(self) -> bool:
        return self._display.doing is not None or self._host.conversing.running is not None
