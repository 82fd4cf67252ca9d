"""What a part of `tools.endure` found, from the process that it runs in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """One row of the table: `count` trials, in `unit`; what was `seen` besides; `failures`."""

    what: str
    count: int = 0
    unit: str = ""
    seen: str = ""
    failures: list[str] = field(default_factory=list)


def child(module: str, home: Path, count: int, seed: int) -> Outcome:
    """What a module prints at its end, run by another process."""
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", module, str(home), str(count), str(seed)],
        env=os.environ | {"LOCALSPEC_HOME": str(home), "LOCALSPEC_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        how = f"{module} ended with {done.returncode}"
        return Outcome(module.rpartition(".")[2], failures=[how])
    return Outcome(**json.loads(lines[-1]))


def tell(outcome: Outcome) -> None:
    print(json.dumps(asdict(outcome)), flush=True)
