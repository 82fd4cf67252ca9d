"""Kills a training at random moments, goes on with it, and compares the file with one of a training
that nobody killed: `python -m tools.distill_kills [TIMES] [SEED]`. Needs the extra `train`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.distill import kills


def main(times: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        target, epochs = kills.prepared(home), 1 + times // 2
        whole, steps = kills.trained(home, target, home / "whole" / "d.gguf", 0, seed, epochs)
        torn, seen = kills.trained(home, target, home / "torn" / "d.gguf", times, seed, epochs)
    print(f"{steps[0]} steps; killed at {', '.join(map(str, seen[:-1]))}")
    print("the same file, byte for byte" if whole == torn else "ANOTHER FILE")
    return int(whole != torn)


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    sys.exit(main(*(numbers + [20, 0][len(numbers) :])))
