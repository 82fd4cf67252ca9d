"""The file of a session: facts as JSON, then parts, each with its checksum.

    magic       8 bytes
    length      of the facts, 8 bytes, little endian
    checksum    of length and facts, 4 bytes
    facts       UTF-8 JSON, with each part's name, type, size in bytes and checksum
    parts       one after the other, each at a multiple of 64

llama.cpp trusts the states that it loads, so checksums are verified first. The facts stay readable
if a part is damaged.
"""

import glob
import json
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.errors import SessionError
from localspec.files import remove_abandoned, replacing

MAGIC = b"lspecSES"
FORMAT = 1
"""Increased with every change of the layout; parts of older versions are not used."""
_HEAD = struct.Struct("<8sQI")
_ALIGNED = 64
_MOST_FACTS = 1 << 30

Part = npt.NDArray[Any]


class SessionFile:
    """An existing file; `facts`: its content besides the parts. Raises FileNotFoundError, or
    SessionError if it is unreadable, not a session, or its facts are damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise SessionError(f"{path} is a pipe or a device. Give another one.")
            with path.open("rb") as file:
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size or head[:8] != MAGIC:
                    raise SessionError(f"{path} is not a session of localspec. Give another file.")
                _, length, checksum = _HEAD.unpack(head)
                facts = file.read(min(length, _MOST_FACTS))
        except FileNotFoundError:
            raise
        except ValueError:  # half a surrogate pair in the name
            raise SessionError(f"{path!r} is not a file name. Give another one.") from None
        except OSError as error:
            raise SessionError(
                f"The session in {path} cannot be read: {error.strerror or error}. Check the file, "
                "or give another one."
            ) from None
        if zlib.crc32(facts, zlib.crc32(head[8:16])) != checksum:
            raise DamagedSession(
                f"The session in {path} is damaged. Remove it, or give another file."
            )
        found: dict[str, Any] = json.loads(facts)
        self._parts: dict[str, Any] = found.pop("parts")
        self.facts = found
        self._start = _aligned(_HEAD.size + length)

    def part(self, name: str) -> Part:
        """Map a part and compare its checksum. Raises SessionError if it is missing or damaged."""
        try:
            entry = self._parts[name]
            kind, size = entry["type"], int(entry["size"])
            count = size // np.dtype(kind).itemsize
            if not count:
                return np.empty(0, kind)
            at = self._start + int(entry["offset"])
            try:
                found: Part = np.memmap(self.path, kind, "r", at, (count,))
            except OSError:  # some shared folders cannot be mapped
                found = np.fromfile(self.path, kind, count, offset=at)
            checksum = zlib.crc32(found.data)
        except (KeyError, ValueError, OSError) as error:
            raise DamagedSession(f"a part of {self.path.name} is missing: {error}") from None
        if checksum != entry["checksum"]:
            raise DamagedSession(f"a part of {self.path.name} is damaged")
        return found


class DamagedSession(SessionError):
    """The file does not match its checksums."""


def write(path: Path, facts: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
    """Write a session atomically, also if this process is killed.

    `facts`: JSON values; `parts`: one-dimensional, uint8 or int32. Raises SessionError if writing
    fails; the old file is kept.
    """
    described: dict[str, dict[str, Any]] = {}
    size = 0
    for name, part in parts.items():
        described[name] = {
            "type": part.dtype.name,
            "size": part.nbytes,
            "offset": size,
            "checksum": zlib.crc32(part.data),
        }
        size = _aligned(size + part.nbytes)
    try:
        text = json.dumps({**facts, "parts": described}).encode()
    except (TypeError, ValueError, RecursionError) as error:  # the caller's conversation
        raise SessionError(f"The conversation is not valid JSON: {error}. Change it.") from None
    checksum = zlib.crc32(text, zlib.crc32(struct.pack("<Q", len(text))))
    try:
        path = Path(os.path.realpath(path))  # as files of killed processes are beside it
        remove_abandoned(path.parent, f"{glob.escape(path.name)}.*.partial")
        with replacing(path, private=True) as partial, partial.open("wb") as file:
            file.write(_HEAD.pack(MAGIC, len(text), checksum) + text)
            start = _aligned(file.tell())
            for name, part in parts.items():
                file.seek(start + described[name]["offset"])
                file.write(part.data)
            file.truncate(start + size)
    except OSError as error:
        raise SessionError(
            f"The session cannot be saved in {path}: {error.strerror or error}. Free some space if "
            f"the disk is full ({-(-size // 1_000_000)} MB are needed), or give another file."
        ) from None


def discard(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNED) * _ALIGNED
