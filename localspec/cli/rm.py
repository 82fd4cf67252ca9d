"""`localspec rm`: delete a model from the cache."""

from __future__ import annotations

from typing import Annotated

import typer

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.text import gigabytes, printable

EXAMPLES = """\
Examples:
  localspec rm unsloth/Qwen3-8B-GGUF:Q5_K_M
  localspec rm unsloth/Qwen3-8B-GGUF --yes"""

_SHOWN = 10
"""Files listed before the question."""

Reference = Annotated[
    str,
    o.argument(
        "REF",
        "user/repo:quant or a name from 'localspec models'; user/repo for all its cached "
        "files; or the path of a file in the cache.",
    ),
]


@o.takes(o.YES, o.COMMON)
def rm(context: typer.Context, reference: Reference) -> int:
    """Delete a downloaded model.

    Shows the files and asks first. Deletes only from the caches of localspec
    and Hugging Face.
    """
    console: Console = context.obj
    from localspec.hub import removal

    planned = removal.plan(reference)
    shown = [printable(str(path), 1000) for path in planned.files[:_SHOWN]]
    if len(planned.files) > _SHOWN:
        shown.append(f"… and {len(planned.files) - _SHOWN} more")
    question = f"Remove {planned.what}, {gigabytes(planned.freed)}?"
    if not context.params["yes"] and not console.confirmed(shown, question):
        console.notice("Nothing was removed.")
        return 0
    planned.execute()
    if console.json:
        console.answer_json({"removed": planned.files, "freed": planned.freed})
    else:
        console.notice(f"{planned.what} is removed; {gigabytes(planned.freed)} are free again.")
    return 0
