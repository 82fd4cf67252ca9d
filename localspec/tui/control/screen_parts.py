"""The parts of the chat's screen, by name."""

from __future__ import annotations

from typing import Any, TypeVar

from textual.app import App
from textual.widget import Widget
from textual.widgets import Static

from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.prompt_input import PromptInput
from localspec.tui.widgets.sidebar import Sidebar
from localspec.tui.widgets.transcript import Transcript

W = TypeVar("W", bound=Widget)

WIDTHS = [(0, "-narrow"), (96, "-middling"), (132, "-wide"), (170, "-huge")]
HEIGHTS = [(0, "-tiny"), (9, "-low"), (16, "-high")]
"""Columns and rows from which the screen has a class, for `styles.tcss`."""


class ScreenParts:
    """Finds them, also while a dialog is open over them."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app

    @property
    def transcript(self) -> Transcript:
        return self.widget(Transcript)

    @property
    def composer(self) -> Composer:
        return self.widget(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.widget(PromptInput)

    @property
    def sidebar(self) -> Sidebar:
        return self.widget(Sidebar)

    @property
    def narrow(self) -> bool:
        """Whether there is no room for a panel beside the conversation."""
        return self._app.screen_stack[0].has_class("-narrow")

    def widget(self, kind: type[W]) -> W:
        return self._app.screen_stack[0].query_one(kind)

    def line(self, selector: str) -> Static:
        return self._app.screen_stack[0].query_one(selector, Static)
