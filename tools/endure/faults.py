"""Parts of `tools.endure` as processes, some with a disk that fills up (`faults.c`)."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
LOADED = "ENDURE_FAULTS"
"""Set where the library is there."""


@dataclass
class Outcome:
    """One row of the table.

    Attributes:
        count: trials, in `unit`.
        seen: what happened besides.
        failures: what should not have happened.
    """

    what: str
    count: int = 0
    unit: str = ""
    seen: str = ""
    failures: list[str] = field(default_factory=list)


def with_faults(module: str, home: Path, count: int, seed: int) -> Outcome:
    """The outcome of `python -m module HOME COUNT SEED`, which prints it, with the library loaded.

    Raises:
        OSError, subprocess.CalledProcessError: there is no C compiler.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    library = home.with_suffix(".so")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60
    )
    return child(module, home, count, seed, LD_PRELOAD=str(library), **{LOADED: "1"})


def child(module: str, home: Path, count: int, seed: int, **environment: str) -> Outcome:
    """The outcome that a module prints at its end, in a process of its own."""
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", module, str(home), str(count), str(seed)],
        env=os.environ | {"LOCALSPEC_HOME": str(home), "LOCALSPEC_THREADS": "1"} | environment,
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
    """Print it for `child`."""
    print(json.dumps(asdict(outcome)), flush=True)


class Faults:
    """The library, in the process that it was loaded into."""

    def __init__(self) -> None:
        assert os.environ.get(LOADED), "start it with with_faults"
        self._library = ctypes.CDLL(None)
        self._library.endure_writes.restype = ctypes.c_long

    def room(self, writes: int | None) -> None:
        """From now on so many writes have room; None: all."""
        self._library.endure_room(ctypes.c_long(-1 if writes is None else writes))

    def writes(self) -> int:
        """How many there were since then."""
        return int(self._library.endure_writes())
