"""The keys that apply where the focus is, and all commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.tui.commands import COMMANDS
from localspec.tui.look import Look

Keys = Sequence[tuple[str, Sequence[tuple[str, str]]]]
"""By place: its name, and (key, what it does) for each."""


class KeysScreen(ModalScreen[None]):
    """Shows them until any of the closing keys.

    Args:
        keys: see `Keys`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,q,enter", "dismiss(None)", "Close")
    ]

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog wide"):
            look = Look.of(self.app)
            for place, keys in self._keys:
                yield Static(_table(place, keys, look))
            commands = [(f"/{c.name} {c.arguments}".strip(), c.about) for c in COMMANDS]
            yield Static(_table("Commands", commands, look))

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def _table(title: str, rows: Sequence[tuple[str, str]], look: Look) -> Table:
    table = Table(
        box=None,
        title=Text(title, look.style("primary", bold=True)),
        title_justify="left",
        show_header=False,
        pad_edge=False,
        expand=True,
    )
    table.add_column(no_wrap=True, style=look.style("accent"))
    table.add_column(ratio=1)
    for key, about in rows:
        table.add_row(Text(key), Text(about))
    return table
