"""Where traces, runs and drafts of each target lie, what is there, and how it goes.

data folder/distill/NAME-IDENTITY/
    trace             see `localspec.distill.trace`
    run-…             one folder for each training: see `localspec.distill.run`
data folder/drafts/NAME-IDENTITY/*.gguf
                      finished drafts, which `-d auto` finds
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localspec import paths
from localspec.distill.trace import Trace
from localspec.errors import LocalspecError, TraceError, UsageError
from localspec.hub.places import drafts_folder

TRACE = "trace"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is kept of one target.

    Attributes:
        name: what --forget takes.
        folder: where it lies.
        target: the model's file name.
        answers, tokens, held_back: recorded answers, their tokens, and those of them that are held
            back from training.
        size: bytes of trace and runs.
        drafts: finished drafts; they are models, and stay when the trace is forgotten.
        problem: why the trace cannot be read, None where it can.
    """

    name: str
    folder: Path
    target: str
    answers: int
    tokens: int
    held_back: int
    size: int
    drafts: tuple[Path, ...]
    problem: str | None = None


def root() -> Path:
    """Where all of it is."""
    return paths.data_folder() / "distill"


def folder_of(target: Path, identity: str) -> Path:
    """Of a target's trace and runs; it need not exist."""
    return root() / _name(target, identity)


def drafts_of(target: Path, identity: str) -> Path:
    """Of a target's finished drafts; it need not exist."""
    return drafts_folder() / _name(target, identity)


def recorded() -> Iterator[Recorded]:
    """Everything that is there, by name."""
    try:
        found = sorted(path for path in root().iterdir() if path.is_dir())
    except OSError:
        return
    for folder in found:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        drafts = tuple(sorted((drafts_folder() / folder.name).glob("*.gguf")))
        try:
            with Trace(folder / TRACE) as trace:
                training, held = (trace.tokens(held_back=part) for part in (False, True))
                yield Recorded(
                    folder.name,
                    folder,
                    trace.header.target,
                    len(trace),
                    training + held,
                    held,
                    size,
                    drafts,
                )
        except FileNotFoundError:
            yield Recorded(folder.name, folder, folder.name, 0, 0, 0, size, drafts)
        except LocalspecError as error:
            yield Recorded(folder.name, folder, folder.name, 0, 0, 0, size, drafts, str(error))


def forget(names: list[str]) -> list[Recorded]:
    """Remove traces and runs from the disk. Finished drafts stay: they are models.

    Raises:
        UsageError: nothing of that name; then nothing is removed.
        TraceError: the disk refuses.
    """
    there = {one.name: one for one in recorded()}
    for name in names:
        if name not in there:
            raise UsageError(
                f"Nothing was recorded under the name '{name}'. localspec distill --list shows all "
                "names."
            )
    gone = [there[name] for name in dict.fromkeys(names)]
    try:
        for one in gone:
            shutil.rmtree(one.folder)
    except OSError as error:
        raise TraceError(
            f"{error.filename} cannot be removed: {error.strerror}. Check its permissions, and try "
            "again."
        ) from None
    return gone


def _name(target: Path, identity: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', target.stem)[:60]}-{identity[:8]}"
