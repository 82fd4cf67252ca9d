"""The outcome of a part of `tools.endure`, passed on from its process."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """A row of the table: `count` trials, in `unit`; other observations in `seen`; `failures`."""

    what: str
    count: int = 0
    unit: str = ""
    seen: str = ""
    failures: list[str] = field(default_factory=list)


def child(module: str, home: Path, count: int, seed: int) -> Outcome:
    """Run a module in another process; the outcome that it prints at its end."""
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
        return Outcome(module, failures=[f"{module} ended with {done.returncode}"])
    return Outcome(**json.loads(lines[-1]))


def print_outcome(outcome: Outcome) -> None:
    print(json.dumps(asdict(outcome)), flush=True)
