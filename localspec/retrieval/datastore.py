"""Lookups in the learned texts of one vocabulary. Reading takes no lock."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from localspec.errors import DatastoreError
from localspec.retrieval import manifest as manifests
from localspec.retrieval.known_texts import LONGEST, KnownSuffix
from localspec.retrieval.segment import Segment, encode

MAX_EXAMINED = 48
"""Most occurrences to examine, evenly spread over all."""

logger = logging.getLogger("localspec.retrieval")


@dataclass(frozen=True)
class Snapshot:
    """The contents of a datastore during one answer."""

    segments: Sequence[Segment] = ()

    @cached_property
    def tokens(self) -> int:
        return sum(segment.count for segment in self.segments)

    def longest(self, ending: Sequence[int]) -> Iterator[KnownSuffix]:
        """See `localspec.retrieval.known_texts.KnownTexts`; each suffix is half as long as the one
        before."""
        if not self.segments or not ending:
            return
        width = self.segments[0].width
        wanted = encode([ending[-LONGEST:]], width)[width:].tobytes()
        found = [(segment, segment.longest(wanted)) for segment in self.segments]
        length = max(known for _, known in found)
        total = 0
        while length:
            containing = [segment for segment, known in found if known >= length]
            occurrences = self._occurrences(containing, wanted[: length * width], length)
            if occurrences.total > total:
                total = occurrences.total
                yield occurrences
            length //= 2

    def _occurrences(
        self, segments: Sequence[Segment], beginning: bytes, length: int
    ) -> KnownSuffix:
        intervals = [(segment, *segment.interval(beginning)) for segment in segments]
        total = sum(high - low for _, low, high in intervals)
        step = max(1.0, total / MAX_EXAMINED)
        places: list[tuple[Segment, int]] = []
        at = 0.0
        for segment, low, high in intervals:
            while at < high - low:
                places.append((segment, segment.position(low + int(at))))
                at += step
            at -= high - low
        return KnownSuffix(self, length, total, places)

    def following(self, places: Sequence[tuple[Segment, int]], ahead: int) -> list[int]:
        return [segment.following(position, ahead) for segment, position in places]


class Datastore:
    """The learned texts of a vocabulary, reopened after changes; `now`: the current contents.

    `fingerprint`: computes the vocabulary's; slow, so only called once a datastore exists. `size`:
    of the vocabulary; higher ids are not proposed."""

    def __init__(self, fingerprint: Callable[[], str], size: int) -> None:
        self._fingerprint = fingerprint
        self._name: str | None = None
        self.size = size
        self.now = Snapshot()
        self._seen: tuple[int, int] | None = None

    def refresh(self) -> list[str]:
        """Reopen the datastore if it has changed. Returns notices for the user, once per change."""
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

    def _open(self, folder: Path, attempts: int = 3) -> list[str]:
        try:
            if manifest := manifests.read(folder):
                width = manifest.width
                self.now = Snapshot(
                    [Segment(folder / one.file, one.count, width) for one in manifest.segments]
                )
        except DatastoreError as error:
            if attempts > 1:  # another process may have merged segments meanwhile
                return self._open(folder, attempts - 1)
            logger.warning("nothing is looked up: %s", error)
            return [f"Learned texts are not used: {error}"]
        return []
