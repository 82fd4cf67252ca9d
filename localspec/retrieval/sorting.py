"""Sorting texts into segments, with pydivsufsort.

libdivsufsort sorts bytes; suffixes that begin inside of a token are dropped."""

from __future__ import annotations

import zlib
from importlib import import_module
from pathlib import Path
from typing import Any

from localspec.errors import UsageError
from localspec.files import replacing
from localspec.retrieval.segment import MAGIC, Bytes

MOST_BYTES = (1 << 31) - 1
"""That a segment's tokens may have: places are int32."""
_PIECE = 1 << 22


def write_segment(path: Path, text: Bytes, width: int) -> int:
    """Sort a text and write it as a segment; the file appears when it is whole.

    Args:
        text: as `segment.encoded` gives it.

    Returns:
        A checksum of the file.

    Raises:
        UsageError: pydivsufsort is not installed.
    """
    order = package("pydivsufsort").divsufsort(text)
    checksum = zlib.crc32(MAGIC)
    with replacing(path, private=True) as partial, partial.open("wb") as file:
        file.write(MAGIC)
        for start in range(0, len(order), _PIECE):
            piece = order[start : start + _PIECE]
            kept = (piece[piece % width == 0] // width).astype("<i4").data
            checksum = zlib.crc32(kept, checksum)
            file.write(kept)
        checksum = zlib.crc32(text.data, checksum)
        file.write(text.data)
    return checksum


def package(name: str) -> Any:
    """One of those that learning takes.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(
            f"Learning needs the package {name}. Install it with pip install '.[learn]' in the "
            "clone of localspec."
        ) from None


def checksum_of(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_PIECE):
            checksum = zlib.crc32(block, checksum)
    return checksum
