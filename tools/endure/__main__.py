"""Faults and long use: kills, damaged files, full disks, hours of answers.

    python -m tools.endure [--kills 2000] [--ggufs 10000] [--writes all]
        [--minutes 120] [--stops 100] [--seed 0]

A part of which there are 0 is left out. Ends with 1 if anything was wrong; the folder of what the
parts left behind then stays. dev/endurance.md says what each part does. For Linux, with a C
compiler for the disk.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tools.endure.faults import Outcome, child, with_faults

WIDTH = 100
EVERY = -1
"""That many writes are all there are."""


@dataclass(frozen=True)
class Part:
    """One part: `python -m tools.endure.NAME HOME COUNT SEED` prints its outcome.

    Attributes:
        option: of the command line, which says how many.
        count: how many without it.
        run: starts it.
        told: what the option counts.
    """

    name: str
    option: str
    count: int
    run: Callable[[str, Path, int, int], Outcome]
    told: str


PARTS = (
    Part("killed_chats", "kills", 2000, child, "kills of the chat"),
    Part("mutated_ggufs", "ggufs", 10_000, child, "mutated model files"),
    Part("full_disk", "writes", EVERY, with_faults, "writes of a store that fail, or `all`"),
    Part("answers", "minutes", 120, child, "minutes of answers"),
    Part("suspended", "stops", 100, child, "commands that are stopped and continued"),
)


def main() -> int:
    """Run the parts one after another, and print the table."""
    options = argparse.ArgumentParser(prog="python -m tools.endure", description=__doc__)
    for part in PARTS:
        options.add_argument(f"--{part.option}", type=_count, default=part.count, help=part.told)
    options.add_argument("--seed", type=int, default=0)
    said = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="endure-"))
    console = Console(width=WIDTH, highlight=False)
    outcomes = []
    for part in PARTS:
        count = getattr(said, part.option)
        if count:
            print(f"{part.name} …", file=sys.stderr, flush=True)
            module = f"tools.endure.{part.name}"
            outcomes.append(part.run(module, folder / part.name, count, said.seed))
    console.print(table(outcomes))
    failures = [f"{each.what}: {failure}" for each in outcomes for failure in each.failures]
    if not failures:
        shutil.rmtree(folder)
        return 0
    console.print(*failures, f"What they left: {folder}", sep="\n", markup=False, soft_wrap=True)
    return 1


def table(outcomes: list[Outcome]) -> Table:
    """A row each."""
    shown = Table(box=box.SIMPLE)
    shown.add_column("what", max_width=24)
    shown.add_column("how many", justify="right", no_wrap=True)
    shown.add_column("what was seen")
    shown.add_column("failures", justify="right")
    for each in outcomes:
        number = f"{each.count:,} {each.unit}"
        shown.add_row(each.what, number, each.seen, str(len(each.failures)))
    return shown


def _count(text: str) -> int:
    return EVERY if text == "all" else int(text)


if __name__ == "__main__":
    sys.exit(main())
