"""The outcome of a part of `tools.endure`, and its process."""

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path


@dataclass
class Outcome:
    """A row of the table: `count` trials, in `unit`; other observations in `seen`; `failures`."""

    what: str
    count: int = 0
    unit: str = ""
    seen: str = ""
    failures: list[str] = field(default_factory=list)


def run_part(name: str, home: Path, count: int, seed: int) -> Outcome:
    """Run the part of that name, a function in a module, in a fresh process."""
    home.mkdir(parents=True, exist_ok=True)
    os.environ |= {"LOCALSPEC_HOME": str(home), "LOCALSPEC_THREADS": "1"}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(_run, name, home, count, seed).result()
        except Exception as error:
            return Outcome(name, failures=[f"{name} ended: {error!r}"])


def _run(name: str, home: Path, count: int, seed: int) -> Outcome:
    found: Outcome = getattr(import_module(f"tools.endure.{name}"), name)(home, count, seed)
    return found
