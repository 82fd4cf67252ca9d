"""Test faults and long use: kills, damaged files, hours of answers.

    python -m tools.endure [--kills 2000] [--ggufs 10000] [--minutes 120] [--seed 0]

A part with the count 0 is skipped. The exit status is 1 if anything failed; the folder with the
parts' files then stays. dev/endurance.md describes the parts. For Linux.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tools.endure.outcome import run_part

PARTS = {
    "kills": ("killed_chats", 2000, "kills of the chat"),
    "ggufs": ("mutated_ggufs", 10_000, "mutated model files"),
    "minutes": ("answers", 120, "minutes of answers"),
}
"""By option: the module, how many by default, and what is counted."""


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tools.endure", description=__doc__)
    for option, (_, count, description) in PARTS.items():
        options.add_argument(f"--{option}", type=int, default=count, help=description)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="endure-"))
    outcomes = []
    for option, (name, *_) in PARTS.items():
        count = getattr(args, option)
        if count:
            print(f"{name} …", file=sys.stderr, flush=True)
            outcomes.append(run_part(name, folder / name, count, args.seed))
    print("| what | how many | what was seen | failures |\n|---|---:|---|---:|")
    for one in outcomes:
        how_many = f"{one.count:,} {one.unit}"
        print(f"| {one.what} | {how_many} | {one.seen} | {len(one.failures)} |")
    failures = [f"{each.what}: {failure}" for each in outcomes for failure in each.failures]
    if not failures:
        shutil.rmtree(folder)
        return 0
    print(*failures, f"Their files: {folder}", sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
