"""Changes of a datastore: adding, removing and sorting texts.

Small segments are merged with new texts (log-structured merge: O'Neil et al. 1996). Files are
written before the manifest that names them, and removed after it, so that a kill changes
nothing."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from localspec import paths
from localspec.errors import DatastoreError, LocalspecError, UsageError
from localspec.files import locked, remove_abandoned
from localspec.retrieval import manifest as manifests
from localspec.retrieval.manifest import Learned, Manifest, SegmentRecord
from localspec.retrieval.segment import (
    MOST_BYTES,
    Bytes,
    Segment,
    encode,
    package,
    width_for,
    write_segment,
)

FACTOR = 4
SMALL = 1 << 15
"""Most tokens of a segment that is merged with any new text."""
PATIENCE = 60.0
"""Seconds to wait for another process that is learning."""

Texts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class LearnedVocabulary:
    fingerprint: str
    size: int
    model: str


def require() -> None:
    package("filelock")
    package("pydivsufsort")


def learn(
    vocabulary: LearnedVocabulary, texts: Mapping[str, Texts], *, patience: float = PATIENCE
) -> Manifest:
    """Add the tokens of texts by name, replacing those of the same names.

    `patience`: seconds to wait for another process that is learning. Raises DatastoreError if the
    datastore is damaged or locked or the disk is full, UsageError if pydivsufsort is not installed.
    """
    folder = manifests.root() / vocabulary.fingerprint
    with _changing(folder, patience):
        manifest = manifests.read(folder)
        if manifest is None:
            width = width_for(vocabulary.size)
            manifest = Manifest(vocabulary.fingerprint, vocabulary.model, width)
        return _rewrite(folder, manifest, texts.keys(), texts)


def forget(folder: Path, names: Iterable[str]) -> Manifest:
    """Remove the texts of these names, from the disk as well; unknown names are ignored. Raises as
    `learn`."""
    with _changing(folder):
        manifest = manifests.read(folder)
        if manifest is None:
            raise DatastoreError(f"There is no datastore in {folder}.")
        removed = frozenset(names) & manifest.learned.keys()
        return _rewrite(folder, manifest, removed, {}) if removed else manifest


def forget_conversations(ids: Iterable[str]) -> None:
    """Remove conversations from all datastores. Raises as `learn`, after removing all it can."""
    names, problems = {manifests.CONVERSATION + id for id in ids}, list[LocalspecError]()
    for folder in manifests.folders():
        try:
            manifest = manifests.read(folder)
            if manifest is not None and names & manifest.learned.keys():
                forget(folder, names)
        except LocalspecError as error:  # noqa: PERF203 - as many as there are vocabularies
            problems.append(error)
    if problems:
        raise problems[0]


def _rewrite(
    folder: Path, manifest: Manifest, removed: Collection[str], new: Mapping[str, Texts]
) -> Manifest:
    """Write a datastore without `removed` names and with new texts. Segments that lose texts, or
    are small relative to the new ones, are merged."""
    width, kept = manifest.width, list[SegmentRecord]()
    learned = {name: each for name, each in manifest.learned.items() if name not in removed}
    loose: list[tuple[str, Bytes]] = []
    for name, texts in new.items():
        if texts := [text for text in texts if len(text)]:
            loose.append((name, encode(texts, width)))
            learned[name] = Learned(len(texts), sum(map(len, texts)))

    def loses(record: SegmentRecord) -> bool:
        return any(name in removed for name, _ in record.parts)

    for record in sorted(manifest.segments, key=lambda each: (not loses(each), each.count)):
        count = sum(len(text) for _, text in loose) // width
        small = record.count <= max(FACTOR * count, SMALL)
        fits = (count + record.count) * width <= MOST_BYTES
        if loses(record) or (loose and small and fits):
            loose += [(n, text) for n, text in _parts(folder, record, width) if n not in removed]
        else:
            kept.append(record)
    if loose:
        text = np.concatenate([part for _, part in loose])
        if len(text) > MOST_BYTES:
            raise UsageError("This is too much text to sort. Learn its folders one by one.")
        file = f"{manifest.next:08d}.segment"
        checksum = write_segment(folder / file, text, width)
        parts = tuple((name, len(part) // width) for name, part in loose)
        kept.append(SegmentRecord(file, len(text) // width, checksum, parts))
    kept.sort(key=lambda record: -record.count)
    number = manifest.next + bool(loose)
    changed = replace(manifest, segments=tuple(kept), learned=learned, next=number)
    changed.write(folder)
    _clean(folder, changed)
    return changed


def _parts(folder: Path, record: SegmentRecord, width: int) -> list[tuple[str, Bytes]]:
    text = Segment(folder / record.file, record.count, width).text(record.checksum)
    ends = np.cumsum([count for _, count in record.parts[:-1]], dtype=int) * width
    names = [name for name, _ in record.parts]
    return list(zip(names, np.split(text, ends), strict=True))


def _clean(folder: Path, manifest: Manifest) -> None:
    remove_abandoned(folder)
    named = {record.file for record in manifest.segments}
    for path in folder.glob("*.segment"):
        if path.name not in named:
            with suppress(OSError):  # on Windows another process may have it mapped
                path.unlink()


@contextmanager
def _changing(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    timeout = package("filelock").Timeout
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(folder / ".lock", patience):
            yield
    except timeout:
        raise DatastoreError(
            f"Another localspec process has been learning in {folder} for more than "
            f"{patience:.0f} seconds. Try again when it is done."
        ) from None
    except OSError as error:
        raise DatastoreError(
            f"Learned texts cannot be written to {folder}: {error.strerror}. Nothing has "
            f"changed. {paths.ADVICE}"
        ) from None
