"""What commands do to the app as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from textual.screen import Screen

from localspec.tui.preferences import Preferences
from localspec.tui.session.conversing import Conversing
from localspec.tui.session.events import PairReference

Result = TypeVar("Result")


class CommandHost(Protocol):
    """The app, as they see it."""

    conversing: Conversing
    preferences: Preferences

    @property
    def available_themes(self) -> Mapping[str, object]: ...

    def attempt(self, action: Callable[[], object]) -> None: ...

    def tell(self, text: str, *, error: bool = False) -> None: ...

    def copy(self, text: str) -> None: ...

    def save_preferences(self) -> None: ...

    def open(self, pair: PairReference) -> None: ...

    def show_tokens(self, tokens: bool, rejected: bool) -> None: ...

    def choose_theme(self, name: str) -> None: ...

    def exit(self) -> None: ...

    def push_screen(
        self, screen: Screen[Result], callback: Callable[[Result | None], Any] | None = None
    ) -> object: ...

    def action_keys(self) -> None: ...

    def action_new(self) -> None: ...

    def action_tokens(self) -> None: ...

    def action_figures(self) -> None: ...

    def action_sidebar(self) -> None: ...

    def action_search(self) -> None: ...

    def action_change_theme(self) -> None: ...
