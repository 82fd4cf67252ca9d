"""`localspec models`: browse the catalogue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.tables import table
from localspec.text import gigabytes, parameter_count

if TYPE_CHECKING:
    from localspec.hub.catalog import Entry

EXAMPLES = """\
  localspec models
  localspec models qwen3 apache
  localspec models eagle-3 --json"""

WORDS = o.parameters("""
    words: [WORD]...
        Show only models with all these words in the name, family, licence, repository, drafts or
        heads.
""")


@o.takes(WORDS, o.only(o.COMMON, "json", "verbose"))
def models(console: Console, params: o.Params) -> None:
    """'localspec pull NAME --draft auto' downloads one with its draft. To add
    models, put a catalog.toml next to your config.toml; an entry with the
    same name replaces the built-in one.
    """
    from localspec.hub import catalog

    found = [entry for entry in catalog.load().entries if entry.matches(params["words"])]
    record = {"models": [entry.model_dump(exclude_none=True) for entry in found]}
    nothing = f"No model in the catalogue matches {' and '.join(params['words'])}."
    console.result(record, _table(found), nothing)
    if found and not console.json:
        console.notice("'localspec pull NAME --draft auto' downloads one, with its draft.")


def _table(entries: Sequence[Entry]) -> str:
    rows = [
        {
            "NAME": entry.name,
            "PARAMETERS": parameter_count(entry.parameters),
            "ACTIVE": parameter_count(entry.active),
            "DOWNLOAD": "" if entry.size is None else gigabytes(entry.size),
            "LICENCE": entry.licence,
            "DRAFT": entry.drafts[0] if entry.drafts else "",
            "HEADS": ", ".join(dict.fromkeys(head.kind for head in entry.heads)),
        }
        for entry in entries
    ]
    numbers = ("PARAMETERS", "ACTIVE", "DOWNLOAD")
    return table(rows, right=numbers, spare=("HEADS", *numbers[1:]))
