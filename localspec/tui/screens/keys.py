"""The keys that apply where the focus is, and all commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Static

from localspec.tui.rendering.palette import Palette
from localspec.tui.session.commands import COMMANDS

_PLACES = {
    "PromptInput": "Input",
    "Transcript": "Conversation",
    "Sidebar": "List of conversations",
    "FiguresPanel": "Figures",
}

_IN_FULL = {
    "keys": "Keys and commands",
    "stop": "Close what is open, or stop the answer",
    "new": "New conversation",
    "command('model')": "Choose the model and its draft",
    "tokens": "Colour tokens by who proposed them",
    "figures": "Show or hide the figures",
    "sidebar": "Show or hide the conversations",
    "search": "Search all conversations",
    "command('regenerate')": "Answer again, as a branch",
    "command('set')": "System prompt and sampling parameters",
}
"""By action: what the footer has no room for."""


def keys_of(screen: Screen[Any], display: Callable[[Binding], str]) -> list[Static]:
    """Tables of the keys that apply where the focus is, special ones first; not those of every list
    and field. Then one of the commands."""
    places: dict[str, dict[str, str]] = {}
    for active in screen.active_bindings.values():
        node, binding = active.node, active.binding
        known = type(node).__name__ in _PLACES or isinstance(node, App)
        own = any(binding.key in b.key.split(",") for b in _own(type(node)))
        if not (known and own and binding.description and active.enabled):
            continue
        keys = places.setdefault(_PLACES.get(type(node).__name__, "Everywhere"), {})
        key, about = display(binding), _IN_FULL.get(binding.action, binding.description)
        before = keys.get(about)
        keys[about] = key if before is None else f"{before}  {key}"
    tables = sorted(places.items(), key=lambda item: item[0] == "Everywhere")
    tables.append(("Commands", {c.about: f"/{c.name} {c.arguments}".strip() for c in COMMANDS}))
    palette = Palette.of(screen.app)
    return [Static(_table(title, rows, palette), classes="keys") for title, rows in tables]


def _own(kind: type[object]) -> list[Binding]:
    return [b for b in vars(kind).get("BINDINGS", ()) if isinstance(b, Binding)]


def _table(title: str, rows: Mapping[str, str], palette: Palette) -> Table:
    """`rows`: keys by what they do."""
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
