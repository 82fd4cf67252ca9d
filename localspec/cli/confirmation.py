"""Asking before something is deleted."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.errors import Cancelled, UsageError

YES = {"yes": o.in_panel(None)("-y --yes", "Delete without asking.")}


def confirmed(console: Console, what: Sequence[str], question: str) -> bool:
    """Show what is meant, and ask.

    Raises:
        UsageError: there is no terminal to ask on.
        Cancelled: interrupted.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            "Deleting needs a confirmation, and this is not a terminal. Add --yes to delete "
            "without asking."
        )
    for line in what:
        console.say(f"  {line}")
    console.ask(f"{question} [y/N] ")
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        raise Cancelled("Interrupted. Nothing was removed.") from None
    return answer.strip().lower() in ("y", "yes")
