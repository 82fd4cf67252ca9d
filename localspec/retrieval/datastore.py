"""What was learned for one vocabulary, as drafts are looked up in it. Reading takes no lock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from localspec.errors import DatastoreError
from localspec.retrieval import manifest as manifests
from localspec.retrieval.manifest import Manifest, SegmentRecord
from localspec.retrieval.segment import Segment, encoded

LONGEST = 32
"""Tokens of an ending that are looked for."""
LOOKED_AT = 48
"""Occurrences that are looked at, evenly spread where there are more."""

logger = logging.getLogger("localspec.retrieval")


@dataclass(frozen=True)
class StoredOccurrences:
    """Where an ending of `length` tokens stands, `total` times. `places`: segments and positions in
    them, as far as they are looked at; `ahead`: tokens behind the ending that all of these places
    went on with."""

    length: int
    total: int
    places: Sequence[tuple[Segment, int]]
    ahead: int = 0

    @cached_property
    def followers(self) -> dict[int, StoredOccurrences]:
        """By each token that followed, its occurrences; the most frequent first."""
        groups: dict[bytes, list[tuple[Segment, int]]] = {}
        ahead = self.ahead + 1
        for place in self.places:
            token = place[0].before(place[1], ahead)
            if token:
                groups.setdefault(token, []).append(place)
        share = self.total / len(self.places)
        length = min(self.length + 1, LONGEST)
        # The sort is stable: equals come in the order of the suffix array, every time the same.
        return {
            int.from_bytes(token, "big"): StoredOccurrences(
                length, max(1, round(len(group) * share)), group, ahead
            )
            for token, group in sorted(groups.items(), key=lambda item: -len(item[1]))
        }


@dataclass(frozen=True)
class Snapshot:
    """A datastore as it is during one answer."""

    segments: Sequence[Segment] = field(default=())

    @cached_property
    def tokens(self) -> int:
        return sum(segment.count for segment in self.segments)

    def longest(self, ending: Sequence[int]) -> Iterator[StoredOccurrences]:
        """Where the longest beginning of `ending`, at least the text's last LONGEST tokens, stands,
        and one of about half its tokens, and so on, on demand. Nothing where the last token occurs
        nowhere."""
        if not self.segments or not ending:
            return
        width = self.segments[0].width
        wanted = encoded([ending[-LONGEST:]], width)[width:].tobytes()
        found = [(segment, segment.longest(wanted)) for segment in self.segments]
        length = max(known for _, known in found)
        total = 0
        while length:
            there = [segment for segment, known in found if known >= length]
            occurrences = _occurrences(there, wanted[: length * width], length)
            if occurrences.total > total:
                total = occurrences.total
                yield occurrences
            length //= 2


def _occurrences(segments: Sequence[Segment], beginning: bytes, length: int) -> StoredOccurrences:
    intervals = [(segment, *segment.interval(beginning)) for segment in segments]
    total = sum(high - low for _, low, high in intervals)
    step = max(1.0, total / LOOKED_AT)
    places: list[tuple[Segment, int]] = []
    at = 0.0
    for segment, low, high in intervals:
        while at < high - low:
            places.append((segment, segment.position(low + int(at))))
            at += step
        at -= high - low
    return StoredOccurrences(length, total, places)


class Datastore:
    """Opens what was learned for a vocabulary, and again when more was; `now` is what there is.
    `fingerprint` computes the vocabulary's, and is asked once there is any datastore, as it is
    slow; `size`: of the vocabulary, what has higher ids is not proposed."""

    def __init__(self, fingerprint: Callable[[], str], size: int) -> None:
        self._fingerprint = fingerprint
        self._name: str | None = None
        self.size = size
        self.now = Snapshot()
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> list[str]:
        """Look whether anything was learned or forgotten since. Returns sentences for the user,
        once for each change."""
        if self._name is None and not manifests.exist():
            return []
        self._name = self._name or self._fingerprint()
        folder = manifests.root() / self._name
        try:
            status = (folder / manifests.FILE).stat()
            seen = status.st_mtime_ns, status.st_ino
        except OSError:
            seen = None
        if seen == self._seen:
            return []
        self._seen, self.now = seen, Snapshot()
        return [] if seen is None else self._open(folder)

    def _open(self, folder: Path) -> list[str]:
        try:
            manifest = manifests.read(folder)
            for _ in range(3):
                if manifest is None:
                    return []
                opened = [_opened(folder, record, manifest) for record in manifest.segments]
                again = manifests.read(folder)
                if again == manifest:
                    break
                manifest = again  # another process merged segments meanwhile
        except DatastoreError as error:
            logger.warning("nothing is looked up: %s", error)
            return [f"What was learned is not used: {error}"]
        self.now = Snapshot(tuple(each for each in opened if isinstance(each, Segment)))
        wrong = [each for each in opened if isinstance(each, str)]
        return [f"Some learned texts are left out: {each} {AGAIN}" for each in wrong]


def _opened(folder: Path, record: SegmentRecord, manifest: Manifest) -> Segment | str:
    """A segment, or a sentence about what is wrong with it."""
    path = folder / record.file
    try:
        return Segment(path, record.count, manifest.width)
    except FileNotFoundError:
        return f"{path} is missing."
    except DatastoreError as error:
        return str(error)


AGAIN = (
    "'localspec learn --list' shows what was learned. Remove the folder of that file and learn it "
    "again, or continue without it."
)
