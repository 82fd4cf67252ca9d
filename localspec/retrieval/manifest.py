"""The manifest of a datastore: one small file, replaced atomically by every change."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from localspec import paths
from localspec.errors import DatastoreError
from localspec.files import read_file, write_atomically

FORMAT = 1
FILE = "manifest.json"
CONVERSATION = "conversation "
"""Prefix of the names of learned conversations, before the id."""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A segment: its file, number of tokens and text ends, checksum (`segment.write_segment`), and
    names and token counts of its parts, in order."""

    file: str
    count: int
    checksum: int
    parts: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Learned:
    """A learned entry: number of texts and tokens, and the time (seconds since 1970)."""

    texts: int
    tokens: int
    when: float = field(default_factory=time.time)


@dataclass(slots=True)
class Manifest:
    """The contents of a datastore. `vocabulary`: fingerprint of the tokens; `model`: for users;
    `width`: bytes per token; `segments`: the largest first; `learned`: by path, or CONVERSATION and
    an id; `next`: number of the next segment's file."""

    vocabulary: str
    model: str
    width: int
    segments: tuple[SegmentRecord, ...] = ()
    learned: Mapping[str, Learned] = field(default_factory=dict)
    next: int = 1

    @property
    def tokens(self) -> int:
        return sum(segment.count for segment in self.segments)

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)})
        write_atomically(folder / FILE, text, private=True)


def root() -> Path:
    """The parent folder of all datastores, one per vocabulary."""
    return paths.data_folder() / "retrieval"


def exist() -> bool:
    """Whether anything was ever learned; an unreadable folder counts as none."""
    return os.path.isdir(root())  # Path.is_dir raises where permission is missing


def folders() -> list[Path]:
    """All datastores. Raises OSError if their folder is unreadable."""
    try:
        return sorted(path for path in root().iterdir() if (path / FILE).exists())
    except FileNotFoundError:
        return []


def read(folder: Path) -> Manifest | None:
    """Read the manifest of a datastore; None if there is none. Raises DatastoreError if it is
    damaged, of another vocabulary, or unreadable."""
    path = folder / FILE
    advice = f"Remove the folder {folder}, and learn again."
    try:
        stored = json.loads(read_file(path))
        if stored.pop("format") != FORMAT:
            raise DatastoreError(f"{path} was written by another version of localspec. {advice}")
        stored["segments"] = tuple(SegmentRecord(**each) for each in stored["segments"])
        stored["learned"] = {name: Learned(**each) for name, each in stored["learned"].items()}
        manifest = Manifest(**stored)
        if manifest.width not in (2, 3) or any(
            "/" in each.file or each.count < 1 for each in manifest.segments
        ):
            raise ValueError("of no datastore")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DatastoreError(
            f"{path} cannot be read: {error.strerror}. Check its permissions."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DatastoreError(f"{path} is damaged. {advice}") from None
    if manifest.vocabulary != folder.name:
        raise DatastoreError(
            f"{folder} holds texts in the tokens of another vocabulary, {manifest.vocabulary}. "
            f"Rename the folder to that, or remove it and learn again."
        )
    return manifest
