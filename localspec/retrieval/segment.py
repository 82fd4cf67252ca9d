"""A sorted text on disk, to find and count the occurrences of another text's suffix.

He et al. 2023 (REST), section 3.2, over a suffix array (Manber & Myers 1990) of the *reversed*
text: the newest tokens of the context are the beginning of suffixes, so that one binary search
finds the longest match, and a count is the width of an interval.

The file, little-endian except for the tokens, whose bytes have to sort as their ids do:

    magic                      16 bytes
    suffix array               int32 [count], in the order of the suffixes' bytes
    tokens, the newest first   big-endian, `width` bytes each"""

import mmap
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import DatastoreError, extra_package
from localspec.files import replacing

MAGIC = b"localspec-text-1"
MOST_BYTES = (1 << 31) - 1
"""Most bytes of a segment's tokens, as indices are int32."""
_PIECE = 1 << 22
Bytes = npt.NDArray[np.uint8]


def width_for(vocabulary: int) -> int:
    """Bytes per token: 2 or 3. The highest number marks the end of a text."""
    return 2 if vocabulary < 1 << 16 else 3


def encode(texts: Sequence[Sequence[int] | npt.NDArray[np.int32]], width: int) -> Bytes:
    """Encode texts for a segment, uint8 [width × (tokens + texts)]: reversed, each with an end."""
    end = np.array([(1 << 8 * width) - 1])
    stream = np.concatenate([part for text in texts for part in (np.asarray(text, np.int64), end)])
    wide = stream[::-1].astype(">u4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(wide[:, 4 - width :]).reshape(-1)


class Segment:
    """A mapped segment file of `count` tokens, text ends included. Damage inside only leads to
    rejected proposals. Raises DatastoreError if the file is missing, invalid or of another
    size."""

    def __init__(self, path: Path, count: int, width: int) -> None:
        self.path, self.count, self.width = path, count, width
        self._end = b"\xff" * width
        size = len(MAGIC) + count * (4 + width)
        try:
            with path.open("rb") as file:
                found = file.seek(0, 2)
                file.seek(0)
                if found != size or file.read(len(MAGIC)) != MAGIC:
                    raise self._failed(f"is damaged: {found:,} bytes instead of {size:,}")
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            why = "is missing" if missing else f"cannot be read: {error.strerror}"
            raise self._failed(why) from None
        self._base = len(MAGIC) + 4 * count
        self._order = memoryview(self._bytes)[len(MAGIC) : self._base].cast("i")

    def _failed(self, why: str) -> DatastoreError:
        folder = self.path.parent
        return DatastoreError(f"{self.path} {why}. Remove the folder {folder}, and learn again.")

    def text(self, checksum: int) -> Bytes:
        """Return its text, if the file has this checksum. Raises DatastoreError."""
        if _checksum_of(self.path) != checksum:
            raise self._failed("is damaged: its checksum does not match")
        return np.frombuffer(self._bytes[self._base :], np.uint8)

    def longest(self, ending: bytes) -> int:
        """Length in tokens of the longest match of an ending, the newest token first."""
        low = bisect_left(range(self.count), ending, key=self._suffix(len(ending)))
        nearest = (place for place in (low - 1, low) if 0 <= place < self.count)
        return max((self._shared(place, ending) for place in nearest), default=0)

    def interval(self, beginning: bytes) -> tuple[int, int]:
        """The range of the suffix array whose suffixes have a prefix: start, end."""
        places, suffix = range(self.count), self._suffix(len(beginning))
        low = bisect_left(places, beginning, key=suffix)
        return low, bisect_right(places, beginning, low, key=suffix)

    def _suffix(self, size: int) -> Callable[[int], bytes]:
        """Return a function for the first `size` bytes of the suffix at an index."""
        text, order, base, width = self._bytes, self._order, self._base, self.width

        def found(place: int) -> bytes:
            start = base + order[place] * width
            return text[start : start + size]

        return found

    def position(self, place: int) -> int:
        """Offset in the file of the suffix at an index of the suffix array."""
        return self._base + self._order[place] * self.width

    def following(self, position: int, ahead: int) -> int:
        """The token that is `ahead` tokens after a suffix in its text; -1 beyond the text's end."""
        start = position - ahead * self.width
        if start < self._base:
            return -1
        token = self._bytes[start : start + self.width]
        return -1 if token == self._end else int.from_bytes(token, "big")

    def _shared(self, place: int, ending: bytes) -> int:
        suffix = self._suffix(len(ending))(place)
        pairs = enumerate(zip(suffix, ending, strict=False))
        return next((i for i, (a, b) in pairs if a != b), len(suffix)) // self.width


def write_segment(path: Path, text: Bytes, width: int) -> int:
    """Sort a text encoded by `encode`, and write it atomically as a segment; returns the file's
    checksum. Raises UsageError if pydivsufsort is not installed."""
    order = package("pydivsufsort").divsufsort(text)
    with replacing(path, private=True) as partial, partial.open("wb") as file:
        file.write(MAGIC)
        for start in range(0, len(order), _PIECE):
            # libdivsufsort sorts bytes, so suffixes that begin inside a token are dropped.
            piece = order[start : start + _PIECE]
            file.write((piece[piece % width == 0] // width).astype("<i4").data)
        file.write(text.data)
    return _checksum_of(path)


def package(name: str) -> Any:
    """Import a package that learning needs. Raises UsageError if it is not installed."""
    return extra_package(name, "Learning needs", "learn")


def _checksum_of(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_PIECE):
            checksum = zlib.crc32(block, checksum)
    return checksum
