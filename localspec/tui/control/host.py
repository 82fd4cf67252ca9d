"""The app as its control sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import App

from localspec.chat.conversation import Conversation
from localspec.errors import LocalspecError
from localspec.history.writer import HistoryWriter
from localspec.text import harmless
from localspec.tui import preferences
from localspec.tui.control.screen_parts import ScreenParts
from localspec.tui.preferences import Preferences
from localspec.tui.session.conversing import Conversing
from localspec.tui.session.events import PairReference

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel


class Host(App[None]):
    """What all parts use; `localspec.tui.app.ChatApp` implements it."""

    parts: ScreenParts
    preferences: Preferences
    store: HistoryWriter
    conversing: Conversing
    offline: bool | None

    def tell(self, text: str, *, error: bool = False) -> None:
        severity: SeverityLevel = "error" if error else "information"
        self.notify(harmless(text), severity=severity, markup=False, timeout=8)

    def attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except LocalspecError as error:
            self.tell(str(error), error=True)

    def copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        self.tell(f"Copied {len(text):,} characters.")

    def save_preferences(self) -> None:
        trouble = preferences.save(self.preferences)
        if trouble is not None:
            self.tell(trouble, error=True)

    def show(
        self, conversation: Conversation, message: str | None = None, *, uncover: bool = True
    ) -> None:
        """Show this conversation and message; `uncover` to write in it at once."""
        raise NotImplementedError

    def listed(self) -> None:
        raise NotImplementedError

    def show_tokens(self, tokens: bool, rejected: bool) -> None:
        """How answers are shown, now and next time."""
        raise NotImplementedError

    def new_conversation(self) -> Conversation:
        """An empty one, with the settings of preferences and command line."""
        raise NotImplementedError

    def open(self, pair: PairReference) -> None:
        """Open this pair, now and, if that works, next time."""
        raise NotImplementedError
