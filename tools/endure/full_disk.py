"""A disk that fills at every write in turn: what was kept before stays, and nothing worse than a
sentence comes of it. Run by `tools.endure`, with the library of `faults.c` loaded."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from localspec.errors import LocalspecError
from tools.endure.faults import Faults, Outcome, tell
from tools.endure.stores import Store, stores

TOLD = 17
"""Exit status of a child that was told a sentence."""
PATIENCE = 600
"""Seconds after which a child that does not end is ended, by a signal that is a failure."""


def full_disk(home: Path, most: int) -> Outcome:
    """All stores.

    Args:
        most: trials a store at most, spread over its writes; all of them where it is below 0.
    """
    faults, outcome = Faults(), Outcome("a disk that fills at every write in turn", unit="writes")
    seen = []
    for store in stores(home):
        writes, told = _one(store, home, faults, outcome, most)
        seen.append(f"{store.name} {writes} writes, told {told} times")
    outcome.seen = "; ".join(seen)
    return outcome


def _one(store: Store, home: Path, faults: Faults, outcome: Outcome, most: int) -> tuple[int, int]:
    """Returns how many writes a change makes, and how often the full disk was told."""
    whole = home.with_name(f"{home.name}-before")
    problem = forked(store.prepare)
    if problem is not None:
        outcome.failures.append(f"{store.name}, before: {problem}")
        return 0, 0
    shutil.rmtree(whole, ignore_errors=True)
    shutil.copytree(home, whole)
    counted = home.with_name(f"{home.name}-writes")

    def counting() -> None:
        faults.room(None)
        store.change()
        written = faults.writes()
        counted.write_text(json.dumps(written))

    problem = forked(counting)
    if problem is not None:
        outcome.failures.append(f"{store.name}, with room: {problem}")
        return 0, 0
    writes = int(json.loads(counted.read_text()))
    step = max(1, -(-writes // most)) if most > 0 else 1
    told = 0
    for room in range(0, writes, step):
        shutil.rmtree(home)
        shutil.copytree(whole, home)

        def filling(room: int = room) -> None:
            faults.room(room)
            store.change()

        outcome.count += 1
        problem = forked(filling, may_tell=True)
        told += problem == "told"
        for what, wrong in (("", problem), (" afterwards", forked(store.look))):
            if wrong not in (None, "told"):
                outcome.failures.append(f"{store.name}, write {room}{what}: {wrong}")
    shutil.rmtree(home)
    shutil.copytree(whole, home)
    return writes, told


def forked(do: Callable[[], None], *, may_tell: bool = False) -> str | None:
    """Do it in a child; what went wrong, None if nothing did, "told" where that is allowed."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        signal.alarm(PATIENCE)
        status = 1
        try:
            do()
            status = 0
        except LocalspecError as error:
            status = TOLD if may_tell else 1
            os.write(writes, f"{type(error).__name__}: {error}"[:2000].encode())
        except BaseException:
            os.write(writes, traceback.format_exc()[-2000:].encode())
        finally:
            os._exit(status)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        words = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    return "told" if code == TOLD else words or f"ended with {code}"


if __name__ == "__main__":
    tell(full_disk(Path(sys.argv[1]), int(sys.argv[2])))
