"""A question with a few answers, or something to read, such as the keys, over the screen."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from rich.table import Table
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.events import Mount
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from localspec.text import harmless
from localspec.tui.rendering.palette import Palette
from localspec.tui.session.commands import COMMANDS

T = TypeVar("T")


class Dialog(ModalScreen[T]):
    """A modal screen with a line of its keys, which can be dismissed more than once."""

    @on(Mount)
    def _show_keys(self) -> None:
        self.mount(Footer(compact=True, show_command_palette=False))

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        # A second key may have been queued when the first one closed it.
        if not self.is_current:
            return AwaitComplete()
        self.workers.cancel_node(self)
        return super().dismiss(result)


class QuestionScreen(Dialog[str | None]):
    """A question; its result is the id of an answer, None for Escape. `answers`: texts by id."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(self, text: str, answers: Mapping[str, str]) -> None:
        super().__init__()
        self._text, self._answers = text, answers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(harmless(self._text), markup=False)
            yield OptionList(*(Option(says, id=id) for id, says in self._answers.items()))

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    @on(OptionList.OptionSelected)
    def _answer(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option_id)


class ReadingScreen(Dialog[None]):
    """A scrollable text, made of widgets."""

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


def keys_of(screen: Screen[Any], display: Callable[[Binding], str]) -> list[Static]:
    """Tables of the active keys, the focused widget's first, without those of standard lists and
    fields; and a table of the commands."""
    places: dict[str, dict[str, str]] = {}
    for active in screen.active_bindings.values():
        node, binding = active.node, active.binding
        place = vars(type(node)).get("BINDING_GROUP_TITLE")
        own = any(binding.key in b.key.split(",") for b in _own(type(node)))
        if not (own and place and binding.description and active.enabled):
            continue
        keys = places.setdefault(place, {})
        key, about = display(binding), binding.tooltip or binding.description
        before = keys.get(about)
        keys[about] = key if before is None else f"{before}  {key}"
    tables = sorted(places.items(), key=lambda item: item[0] == screen.app.BINDING_GROUP_TITLE)
    tables.append(("Commands", {c.about: f"/{c.name} {c.arguments}".strip() for c in COMMANDS}))
    palette = Palette.of(screen.app)
    return [Static(_table(title, rows, palette), classes="keys") for title, rows in tables]


def _own(kind: type[object]) -> list[Binding]:
    return [b for b in vars(kind).get("BINDINGS", ()) if isinstance(b, Binding)]


def _table(title: str, rows: Mapping[str, str], palette: Palette) -> Table:
    """A table of keys. `rows`: keys by description."""
    table = Table(
        box=None,
        title=Text(title, palette.style("primary", bold=True)),
        title_justify="left",
        show_header=False,
        pad_edge=False,
        expand=True,
    )
    table.add_column(no_wrap=True, style=palette.style("accent"))
    table.add_column(ratio=1)
    for about, key in rows.items():
        table.add_row(Text(key), Text(about))
    return table
