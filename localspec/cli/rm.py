"""`localspec rm`: delete a model from the cache."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from localspec.cli import options as o
from localspec.cli.output import Console
from localspec.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from localspec.hub.removal import Removal

EXAMPLES = """\
Examples:
  localspec rm unsloth/Qwen3-8B-GGUF:Q5_K_M
  localspec rm unsloth/Qwen3-8B-GGUF --yes"""

_SHOWN = 10
"""Files listed before the question."""

Reference = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        show_default=False,
        help="user/repo:quant or a name from 'localspec models'; user/repo for all its cached "
        "files; or the path of a file in the cache.",
    ),
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Delete without asking.")]


def rm(
    context: typer.Context,
    reference: Reference,
    yes: Yes = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Delete a downloaded model.

    Shows the files and asks first. Deletes only from the caches of localspec
    and Hugging Face.
    """
    console: Console = context.obj
    console.configure(quiet=quiet, verbosity=verbose)
    from localspec.hub import removal
    from localspec.text import gigabytes

    planned = removal.plan(reference)
    if not yes and not _confirmed(planned, console):
        console.notice("Nothing was removed.")
        return 0
    planned.execute()
    if json:
        result = {"removed": [str(path) for path in planned.files], "freed": planned.freed}
        console.answer_json(result)
    else:
        console.notice(f"{planned.what} is removed; {gigabytes(planned.freed)} are free again.")
    return 0


def _confirmed(planned: Removal, console: Console) -> bool:
    from localspec.text import gigabytes, printable

    if not sys.stdin.isatty():
        raise UsageError(
            "Deleting needs a confirmation, and this is not a terminal. Add --yes to delete "
            "without asking."
        )
    for path in planned.files[:_SHOWN]:
        console.say(f"  {printable(str(path), 1000)}")
    if len(planned.files) > _SHOWN:
        console.say(f"  … and {len(planned.files) - _SHOWN} more")
    try:
        console.say(f"Remove {planned.what}, {gigabytes(planned.freed)}? [y/N]")
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        raise Cancelled("Interrupted. Nothing was removed.") from None
    return answer.strip().casefold() in ("y", "yes")
