"""Folders of traces, runs and drafts, by target.

data folder/distill/NAME-IDENTITY/
    trace             see `localspec.distill.trace`
    run-…             one for each training: see `localspec.distill.training_run`
data folder/drafts/NAME-IDENTITY/*.gguf
    finished drafts, which `-d auto` finds
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from localspec import paths
from localspec.distill.trace import Trace, TraceHeader
from localspec.errors import LocalspecError, UsageError
from localspec.files import explaining, size_and_time
from localspec.hub.local import drafts_folder
from localspec.identity import content_identity

if TYPE_CHECKING:
    from localspec.llama.vocabulary import Vocabulary

TRACE, RUN = "trace", "run-"


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """The stored data of one target, a model's file name. `name`: as --forget takes it; `size`:
    bytes of trace and runs; `drafts`: finished ones; `held_back`: tokens held back from training;
    `chats`: answers from chats; `problem`: why the trace cannot be read."""

    name: str
    folder: Path
    target: str
    size: int
    drafts: tuple[Path, ...]
    answers: int = 0
    tokens: int = 0
    held_back: int = 0
    chats: int = 0
    problem: str | None = None


def root() -> Path:
    return paths.data_folder() / "distill"


def folder_of(target: Path, identity: str) -> Path:
    """The folder of a target's trace and runs; it may not exist."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", target.stem)[:60]
    return root() / f"{stem}-{identity[:8]}"


def header_of(target: Path, vocabulary: Vocabulary) -> TraceHeader:
    identity, tokens = content_identity(target), vocabulary.fingerprint()
    return TraceHeader(target.name, identity, tokens, vocabulary.size)


def recorded_targets() -> Iterator[TargetEntry]:
    """Raises OSError if the folder of all recordings is unreadable."""
    try:
        found = sorted(path for path in root().iterdir() if path.is_dir())
    except FileNotFoundError:
        return
    yield from map(_entry_of, found)


def _entry_of(folder: Path) -> TargetEntry:
    drafts = tuple(sorted((drafts_folder() / folder.name).glob("*.gguf")))
    size = sum(size_and_time(path)[0] for path in folder.rglob("*") if os.path.isfile(path))
    known = TargetEntry(folder.name, folder, folder.name, size, drafts)
    try:
        with Trace(folder / TRACE) as trace:
            training, held = (trace.tokens(held_back=part) for part in (False, True))
            return replace(
                known,
                target=trace.header.target,
                answers=len(trace),
                tokens=training + held,
                held_back=held,
                chats=len(trace.chats),
            )
    except FileNotFoundError:
        return known
    except LocalspecError as error:
        return replace(known, problem=str(error))


def forget(names: list[str]) -> list[TargetEntry]:
    """Remove traces and runs; finished drafts stay."""
    entries = {entry.name: entry for entry in recorded_targets()}
    for name in names:
        if name not in entries:
            raise UsageError(
                f"Nothing was recorded under the name '{name}'. 'localspec distill --list' shows "
                "the names."
            )
    removed = [entries[name] for name in dict.fromkeys(names)]
    for entry in removed:
        remove(entry.folder)
    return removed


def remove(folder: Path) -> None:
    """Remove a folder with its content; raises LocalspecError."""
    with explaining(folder, "Check its permissions, and try again.", "removed"):
        shutil.rmtree(folder)
