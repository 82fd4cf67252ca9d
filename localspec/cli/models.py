"""`localspec models`: browse the catalogue."""

from __future__ import annotations

import json as json_format
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import options as o
from localspec.cli.output import Console

if TYPE_CHECKING:
    from localspec.hub.catalog import Entry
    from localspec.pairing.quantizations import Advice

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
        help="Only models with all these words in the name, family, licence, repository, drafts or "
        "trained heads.",
    ),
]


def models(
    context: typer.Context,
    words: Words = None,
    json: o.Json = False,
    verbose: o.Verbose = 0,
) -> int:
    """List models worth having, what drafts for them, and under which licence.

    'localspec pull NAME --draft auto' fetches one with its draft. Entries of
    your own go into catalog.toml beside config.toml; those of the same name
    replace what comes with localspec. Says which quantization 'localspec doctor'
    found to be fastest here, where it looked.
    """
    console: Console = context.obj
    console.configure(quiet=False, verbosity=verbose)
    from localspec.cli.quantizations import as_json
    from localspec.hub import catalog
    from localspec.pairing import quantizations

    found = [entry for entry in catalog.load().entries if entry.matches(words or ())]
    known = quantizations.known()
    if json:
        records = [
            entry.model_dump(exclude_none=True) | _fastest_as_json(entry, known) for entry in found
        ]
        answer = {"models": records, "measured_here": [as_json(advice) for advice in known]}
        console.answer(json_format.dumps(answer, ensure_ascii=False) + "\n")
    elif found:
        console.answer(_table(found, known))
        for line in _notes(words or (), known):
            console.answer(line)
    else:
        console.notice(f"The catalogue has nothing with {' and '.join(words or ())} in it.")
    return 0


def _known_of(entry: Entry, known: Sequence[Advice]) -> Advice | None:
    """What doctor found out about a model of the catalogue, by the repository it is from."""
    wanted = [repository.casefold() for repository in entry.repositories]
    return next((one for one in known if (one.repository or "").casefold() in wanted), None)


def _fastest_as_json(entry: Entry, known: Sequence[Advice]) -> dict[str, Any]:
    advice = _known_of(entry, known)
    if advice is None:
        return {}
    fastest = advice.fastest()
    return {"fastest_here": {"quantization": fastest.quant, "tokens_per_second": fastest.speed}}


def _fastest(entry: Entry, known: Sequence[Advice]) -> str:
    advice = _known_of(entry, known)
    if advice is None:
        return ""
    return f"{advice.fastest().quant}, {advice.fastest().speed:.3g} tok/s"


def _notes(words: Sequence[str], known: Sequence[Advice]) -> Iterator[str]:
    """Files here of which a type of about the same size would be faster, as doctor found out."""
    from localspec.cli.quantizations import CAVEAT, note
    from localspec.cli.tables import beside

    found = [
        line
        for advice in known
        if advice.target.exists()
        for line in [note(advice, advice.quant, advice.target.name)]
        if line is not None and all(word.casefold() in line.casefold() for word in words)
    ]
    if found:
        yield beside("", "\nOf files here, as 'localspec doctor' measured:")
        yield from (beside("  ", line) for line in found)
        yield beside("  ", CAVEAT)


def _table(entries: list[Entry], known: Sequence[Advice]) -> str:
    from io import StringIO

    from rich import box
    from rich.console import Console as RichConsole
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    measured = any(_known_of(entry, known) for entry in entries)
    last = ("FASTEST HERE",) if measured else ()
    least = max(map(len, (*last, *(_fastest(entry, known) for entry in entries))))
    for title in ("NAME", "PARAMETERS", "DOWNLOAD", "LICENCE", "DRAFT", "HEADS", *last):
        whole = title != "HEADS"  # half a name cannot be typed
        right = title in ("PARAMETERS", "DOWNLOAD")
        table.add_column(
            title,
            justify="right" if right else "left",
            no_wrap=whole,
            min_width=least if title in last else None,
        )
    for entry in entries:
        heads = ", ".join(dict.fromkeys(head.kind for head in entry.heads))
        draft = entry.drafts[0] if entry.drafts else ""
        table.add_row(
            *map(
                Text,
                (
                    *(entry.name, _parameters(entry), _size(entry), entry.licence, draft, heads),
                    *((_fastest(entry, known),) if measured else ()),
                ),
            )
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
