"""Folders of traces, runs and drafts, by target; answers of chats, which are recorded in their
target's trace where the user turned that on.

data folder/distill/NAME-IDENTITY/
    trace             see `localspec.distill.trace`
    run-…             one for each training: see `localspec.distill.training_run`
data folder/drafts/NAME-IDENTITY/*.gguf
    finished drafts, which `-d auto` finds
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from localspec import paths
from localspec.decoding.logprobs import TokenLogprob
from localspec.distill.trace import Trace, TraceHeader, TraceRecord
from localspec.errors import LocalspecError, TraceError, UsageError
from localspec.hub.places import drafts_folder
from localspec.identity import content_identity

if TYPE_CHECKING:
    from localspec.llama.vocabulary import Vocabulary

TRACE, RUN = "trace", "run-"
OF_CONVERSATION = 8
"""Bytes of a key that identify the conversation."""
HELD_BACK = 8
"""One in HELD_BACK conversations is held back from training."""


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
    return root() / _name(target, identity)


def drafts_of(target: Path, identity: str) -> Path:
    """The folder of a target's finished drafts; it may not exist."""
    return drafts_folder() / _name(target, identity)


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
    known = TargetEntry(
        folder.name, folder, folder.name, sum(map(_size, folder.rglob("*"))), drafts
    )
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:  # gone meanwhile
        return 0


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
        _remove(entry.folder)
    return removed


def _forget_runs(folder: Path) -> None:
    """Remove all trainings of a target; raises TraceError."""
    for run in folder.glob(f"{RUN}*"):
        _remove(run)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise TraceError(
            f"{error.filename} cannot be removed: {error.strerror}. Check its permissions, and try "
            "again."
        ) from None


def _name(target: Path, identity: str) -> str:
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', target.stem)[:60]}-{identity[:8]}"


def record_answer(
    folder: Path,
    header: TraceHeader,
    conversation: str,
    prompt: Sequence[int],
    answer: Sequence[TokenLogprob],
) -> None:
    """Add an answer with its `header.k` likeliest tokens to a target's trace. `prompt`: all tokens
    before the answer. Raises as `Trace`."""
    if not answer or not prompt:
        return
    text = np.array([*prompt, *(row.token for row in answer)], "<i4").tobytes()
    begin = _begin(conversation)
    key = begin + hashlib.sha256(text).digest()[:OF_CONVERSATION]
    with Trace(folder / TRACE, header) as trace:
        known = {other[:OF_CONVERSATION]: held for other, held in trace.chats.items()}
        held_back = known.get(begin, len(known) % HELD_BACK == 1)
        trace.append(TraceRecord.of(key, prompt, answer, held_back, chat=True))


def forget_chats(conversations: Collection[str] | None = None) -> int:
    """Remove conversations (None: all) from every trace, with trainings on them; returns the number
    of answers. Finished drafts stay. A TraceError as of `Trace`, after removing all it can."""
    begins = None if conversations is None else {_begin(each) for each in conversations}
    gone, problems = 0, []
    for target in recorded_targets():
        if target.problem is not None:
            problems.append(target.problem)
        if not target.chats:
            continue
        with Trace(target.folder / TRACE) as trace:
            found = [
                key for key in trace.chats if begins is None or key[:OF_CONVERSATION] in begins
            ]
            if found:
                _forget_runs(target.folder)
                trace.erase(found)
        gone += len(found)
    if problems:
        raise TraceError(problems[0])
    return gone


def _begin(conversation: str) -> bytes:
    return hashlib.sha256(conversation.encode()).digest()[:OF_CONVERSATION]
