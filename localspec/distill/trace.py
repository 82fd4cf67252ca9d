"""What a target said, with its likeliest tokens at each place: a file that only grows.

    magic                     16 bytes
    header                    u32 length, then JSON: see `TraceHeader`
    records, one an answer    u32 length, u32 CRC-32 of what follows, then

        facts        flags u8, key 16 bytes, prompt tokens u32, answer tokens u32
        tokens       [prompt + answer]  u16, or u32 where the vocabulary is larger
        ids          [answer, k]        the same; the likeliest tokens, falling
        log p        [answer, k]        float16, natural logarithms of p at temperature 1
        rest         [answer]           float16, what p leaves for all other tokens

All little-endian. Row i is the distribution that token i of the answer was drawn from. A record is
written with one call, so a process that is killed leaves at most a piece of one at the end, which
is overwritten.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from localspec.errors import TraceError
from localspec.files import replacing, write_atomically

MAGIC = b"localspec-trace1"
TOP_K = 32
HELD_BACK, GIVEN, CHAT = 1, 2, 4
"""Flags: kept from training, to measure with; a text that was given, not an answer; an answer that
was
given in a chat."""
_LENGTHS, _FACTS = struct.Struct("<II"), struct.Struct("<B16sII")

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """Whose answers they are.

    Attributes:
        target: the file's name, for people.
        identity: see `localspec.identity.content_identity`.
        vocabulary: its fingerprint.
        size: its tokens.
        k: likeliest tokens that are kept of each distribution.
    """

    target: str
    identity: str
    vocabulary: str
    size: int
    k: int = TOP_K

    @property
    def kind(self) -> np.dtype[Any]:
        """Of token ids in the file."""
        return np.dtype("<u2" if self.size <= 1 << 16 else "<u4")


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One answer.

    Attributes:
        key: of prompt and turn, so that nothing is asked twice.
        prompt, answer: token ids.
        ids: int [answer, k].
        log_p: float32 [answer, k].
        rest: float32 [answer].
        held_back, given, chat: see HELD_BACK.
    """

    key: bytes
    prompt: Array
    answer: Array
    ids: Array
    log_p: Array
    rest: Array
    held_back: bool
    given: bool = False
    chat: bool = False


class Answers(Protocol):
    """What training reads of a trace: its records, by number."""

    def __len__(self) -> int: ...

    def numbers(self, *, held_back: bool) -> list[int]:
        """Records of one part."""
        ...

    def lengths(self, number: int) -> tuple[int, int]:
        """Prompt and answer tokens of a record."""
        ...

    def record(self, number: int) -> TraceRecord: ...


class _Place(NamedTuple):
    """Where a record's body is, and what is in it."""

    at: int
    length: int
    prompt: int
    answer: int
    flags: int
    key: bytes


class Trace:
    """An open trace. Close it, or use it as a context manager; records are read when asked for.

    Attributes:
        keys: of all records.
        damaged: records whose checksum is wrong; they are passed over.

    Args:
        path: made where it is not there and `header` is given.
        header: what it has to be of; None takes what is there and opens it for reading.

    Raises:
        TraceError: it is not a trace, or another target's, or cannot be read or written.
        FileNotFoundError: there is none, and no header.
    """

    def __init__(self, path: Path, header: TraceHeader | None = None) -> None:
        self.path = path
        self.damaged = 0
        self.keys: set[bytes] = set()
        self._places: list[_Place] = []
        try:
            if header is not None and not path.exists():
                write_atomically(path, _told(header), private=True)
            self._file: BinaryIO = path.open("rb" if header is None else "r+b")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise _unwritten(path, error) from None
        try:
            self.header = self._read_header()
            if header is not None and self.header != header:
                raise TraceError(
                    f"{path} has the answers of another model ({self.header.target}). Remove it "
                    "with localspec distill --forget, or name another trace."
                )
            self._end = self._scan()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        self._file.close()

    def tokens(self, *, held_back: bool) -> int:
        """Of all answers of one part."""
        return sum(self._places[n].answer for n in self.numbers(held_back=held_back))

    def numbers(self, *, held_back: bool) -> list[int]:
        return [
            i for i, each in enumerate(self._places) if bool(each.flags & HELD_BACK) == held_back
        ]

    @property
    def chats(self) -> dict[bytes, bool]:
        """Keys of the answers that were given in chats, in order, and if they are held back."""
        return {
            each.key: bool(each.flags & HELD_BACK) for each in self._places if each.flags & CHAT
        }

    def lengths(self, number: int) -> tuple[int, int]:
        place = self._places[number]
        return place.prompt, place.answer

    def record(self, number: int) -> TraceRecord:
        """One of them; raises TraceError."""
        place = self._places[number]
        return _decoded(self._body(place), self.header, place)

    def _body(self, place: _Place) -> bytes:
        try:
            self._file.seek(place.at)
            return self._file.read(place.length)
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror}.") from None

    def append(self, record: TraceRecord) -> None:
        """Write one behind the others; where that raises TraceError, what was there stays."""
        flags = HELD_BACK * record.held_back | GIVEN * record.given | CHAT * record.chat
        body = _encoded(record, self.header, flags)
        data = _framed(body)
        try:
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise _unwritten(self.path, error) from None
        counts = len(record.prompt), len(record.answer)
        place = _Place(self._end + _LENGTHS.size, len(body), *counts, flags, record.key)
        self._places.append(place)
        self._end += len(data)
        self.keys.add(record.key)

    def sync(self) -> None:
        """Have the disk keep what was appended."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritten(self.path, error) from None

    def without(self, keys: Collection[bytes]) -> None:
        """Replace the file with one that lacks these records; this trace is not to be used after.
        Where that
        raises TraceError, it is as it was."""
        try:
            with replacing(self.path, private=True) as partial, partial.open("wb") as file:
                file.write(_told(self.header))
                for place in self._places:
                    if place.key not in keys:
                        file.write(_framed(self._body(place)))
                file.flush()
                os.fsync(file.fileno())
                file.close()
                self.close()  # Windows replaces no file that is open
        except OSError as error:
            raise _unwritten(self.path, error) from None

    def _read_header(self) -> TraceHeader:
        head = self._file.read(len(MAGIC) + 4)
        if head[: len(MAGIC)] != MAGIC or len(head) < len(MAGIC) + 4:
            raise TraceError(f"{self.path} is not a trace of localspec distill. Name another file.")
        (length,) = struct.unpack("<I", head[-4:])
        try:
            return TraceHeader(**json.loads(self._file.read(length)))
        except (ValueError, TypeError):
            raise TraceError(
                f"{self.path} is damaged: its header cannot be read. Remove it, and record again."
            ) from None

    def _scan(self) -> int:
        """Find the records; returns where the next one begins."""
        at = self._file.tell()
        whole = os.fstat(self._file.fileno()).st_size
        while at + _LENGTHS.size <= whole:
            self._file.seek(at)
            length, checksum = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
            if length < _FACTS.size or at + _LENGTHS.size + length > whole:
                break
            body = self._file.read(length)
            if zlib.crc32(body) == checksum:
                flags, key, prompt, answer = _FACTS.unpack_from(body)
                place = _Place(at + _LENGTHS.size, length, prompt, answer, flags, key)
                self._places.append(place)
                self.keys.add(key)
            else:
                self.damaged += 1
            at += _LENGTHS.size + length
        return at


def bytes_of(header: TraceHeader, prompt: int, answer: int) -> int:
    """What an answer takes on the disk."""
    width = header.kind.itemsize
    body = _FACTS.size + width * (prompt + answer) + answer * (header.k * (width + 2) + 2)
    return _LENGTHS.size + body


def _told(header: TraceHeader) -> bytes:
    told = json.dumps(asdict(header)).encode()
    return MAGIC + struct.pack("<I", len(told)) + told


def _framed(body: bytes) -> bytes:
    return _LENGTHS.pack(len(body), zlib.crc32(body)) + body


def _encoded(record: TraceRecord, header: TraceHeader, flags: int) -> bytes:
    kind = header.kind
    tokens = np.concatenate([record.prompt, record.answer])
    return b"".join(
        (
            _FACTS.pack(flags, record.key, len(record.prompt), len(record.answer)),
            tokens.astype(kind).tobytes(),
            record.ids.astype(kind).tobytes(),
            record.log_p.astype("<f2").tobytes(),
            record.rest.astype("<f2").tobytes(),
        )
    )


def _decoded(body: bytes, header: TraceHeader, place: _Place) -> TraceRecord:
    prompt, answer, k, kind = place.prompt, place.answer, header.k, header.kind.str
    layout = np.dtype(
        [
            ("tokens", kind, (prompt + answer,)),
            ("ids", kind, (answer, k)),
            ("log_p", "<f2", (answer, k)),
            ("rest", "<f2", (answer,)),
        ]
    )
    found = np.frombuffer(body, layout, 1, _FACTS.size)[0]
    tokens = found["tokens"].astype(np.int64)
    return TraceRecord(
        place.key,
        tokens[:prompt],
        tokens[prompt:],
        found["ids"].astype(np.int64),
        found["log_p"].astype(np.float32),
        found["rest"].astype(np.float32),
        *(bool(place.flags & flag) for flag in (HELD_BACK, GIVEN, CHAT)),
    )


def _unwritten(path: Path, error: OSError) -> TraceError:
    return TraceError(
        f"The trace {path} cannot be written: {error.strerror or error}. What it had before stays. "
        "Make room, or set LOCALSPEC_HOME to a folder that has it, and run the command again."
    )
