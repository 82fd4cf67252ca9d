"""`localspec models`: browse the catalogue."""

from __future__ import annotations

import json as json_format
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import options as o
from localspec.cli.output import Console

if TYPE_CHECKING:
    from localspec.hub.catalog import Entry

EXAMPLES = """\
Examples:
  localspec models
  localspec models qwen3 apache
  localspec models eagle-3 --json"""

_WIDTH = 120

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[WORD]...",
        show_default=False,
        help="Show only models with all these words in the name, family, licence, repository, "
        "drafts or heads.",
    ),
]


def models(
    context: typer.Context,
    words: Words = None,
    json: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """List recommended models with their drafts and licences.

    'localspec pull NAME --draft auto' downloads one with its draft. To add
    models, put a catalog.toml next to your config.toml; an entry with the
    same name replaces the built-in one.
    """
    console: Console = context.obj
    console.configure(quiet=False, verbosity=verbose)
    from localspec.hub import catalog

    found = [entry for entry in catalog.load().entries if entry.matches(words or ())]
    if json:
        answer = {"models": [entry.model_dump(exclude_none=True) for entry in found]}
        console.answer(json_format.dumps(answer, ensure_ascii=False) + "\n")
    elif found:
        console.answer(_table(found))
    else:
        console.notice(f"The catalogue has nothing with {' and '.join(words or ())} in it.")
    return 0


def _table(entries: Sequence[Entry]) -> str:
    from io import StringIO

    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in ("NAME", "PARAMETERS", "DOWNLOAD", "LICENCE", "DRAFT", "HEADS"):
        whole = title != "HEADS"  # half a name cannot be typed
        right = title in ("PARAMETERS", "DOWNLOAD")
        table.add_column(title, justify="right" if right else "left", no_wrap=whole)
    for entry in entries:
        heads = ", ".join(dict.fromkeys(head.kind for head in entry.heads))
        draft = entry.drafts[0] if entry.drafts else ""
        table.add_row(
            *map(Text, (entry.name, _parameters(entry), _size(entry), entry.licence, draft, heads))
        )
    # Where nobody looks at it now, somebody will later, in a terminal of the usual width.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    page = StringIO()
    console = RichConsole(file=page, color_system=None, width=width)
    # A terminal that is too narrow for that wraps lines; better than a name cut short.
    console.width = max(width, console.measure(table).minimum)
    console.print(table)
    lines = [line.rstrip().removeprefix(" ") for line in page.getvalue().splitlines()]
    return "\n".join(line for line in lines if line) + "\n"


def _parameters(entry: Entry) -> str:
    active = "" if entry.active is None else f" ({_count(entry.active)} active)"
    return f"{_count(entry.parameters)}{active}"


def _count(number: int) -> str:
    """1.7 B, 135 M."""
    if number >= 1e9:
        return f"{number / 1e9:.1f} B"
    return f"{number / 1e6:.0f} M"


def _size(entry: Entry) -> Any:
    from localspec.text import gigabytes

    return "" if entry.size is None else gigabytes(entry.size)
