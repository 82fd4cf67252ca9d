"""A question with a few answers, or something to read, over the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from localspec.text import harmless


class QuestionScreen(ModalScreen[str | None]):
    """Ends with an answer's id, None for Escape; answers are (id, text)."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, text: str, answers: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._text, self._answers = text, answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(harmless(self._text), markup=False)
            yield OptionList(*(Option(says, id=id) for id, says in self._answers))

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    @on(OptionList.OptionSelected)
    def _answer(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


class ReadingScreen(ModalScreen[None]):
    """Parts one below the other."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q,w,enter", "dismiss(None)", "Close")
    ]

    def __init__(self, *parts: Widget) -> None:
        super().__init__()
        self._parts = parts

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            yield from self._parts

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
