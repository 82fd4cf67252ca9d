"""Answers of a target with the likeliest tokens at each position, in an SQLite file.

    header     one row, JSON: see `TraceHeader`
    records    one row per answer: key, flags, prompt and answer tokens, and a body of

    tokens       [prompt + answer]  u16, or u32 where the vocabulary is larger
    ids          [answer, k]        the same; the likeliest tokens, by descending p
    log p        [answer, k]        float16, natural logarithms of p at temperature 1
    rest         [answer]           float16, p of all other tokens

All little-endian. Row i is the distribution from which token i of the answer was drawn. Several
processes may add answers at once; a process that is killed loses its current answer at most.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from localspec import paths
from localspec.decoding.logprobs import TokenLogprob
from localspec.errors import TraceError

TOP_K = 32
HELD_BACK, CHAT = 1, 4
"""Flags: held back from training; an answer of a chat."""
PATIENCE = 5.0
"""Seconds to wait for another process that writes."""
_TABLES = (
    "CREATE TABLE IF NOT EXISTS header (facts TEXT)",
    "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, key BLOB UNIQUE,"
    " flags INTEGER, prompt INTEGER, answer INTEGER, body BLOB)",
)

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """The target of a trace. `target`: its file name, for display; `identity`: see
    `localspec.identity.content_identity`; `vocabulary`: its fingerprint, of `size` tokens; `k`:
    likeliest tokens stored of each distribution."""

    target: str
    identity: str
    vocabulary: str
    size: int
    k: int = TOP_K

    def layout(self, prompt: int, answer: int) -> np.dtype[Any]:
        """The layout of a record's body with these numbers of tokens."""
        kind = "<u2" if self.size <= 1 << 16 else "<u4"
        return np.dtype(
            [
                ("tokens", kind, (prompt + answer,)),
                ("ids", kind, (answer, self.k)),
                ("log_p", "<f2", (answer, self.k)),
                ("rest", "<f2", (answer,)),
            ]
        )


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One answer: ids int [answer, k], log_p float32 [answer, k], rest float32 [answer]. `key`: of
    prompt and turn, to avoid repeats; for the flags see HELD_BACK; `following`: the answer's
    tokens in a head's numbering, None if these are their ids."""

    key: bytes
    prompt: Array
    answer: Array
    ids: Array
    log_p: Array
    rest: Array
    held_back: bool
    chat: bool = False
    following: Array | None = None

    @classmethod
    def of(
        cls,
        key: bytes,
        prompt: Sequence[int],
        answer: Sequence[TokenLogprob],
        held_back: bool,
        chat: bool = False,
    ) -> TraceRecord:
        """The record of an answer with its likeliest tokens."""
        ids = np.array([[token for token, _ in row.top] for row in answer])
        log_p = np.array([[logprob for _, logprob in row.top] for row in answer], np.float32)
        rest = np.maximum(0.0, 1.0 - np.exp(log_p).sum(1))
        tokens = np.array([row.token for row in answer])
        return cls(key, np.array(prompt), tokens, ids, log_p, rest, held_back, chat)


class _Row(NamedTuple):
    number: int
    key: bytes
    flags: int
    prompt: int
    answer: int


class Trace:
    """An open trace, a context manager; records are read on access, `keys` at once. A missing file
    is created if `header` is given, otherwise a FileNotFoundError. A TraceError if it is not a
    trace, belongs to a target other than that of `header`, or cannot be read or written."""

    def __init__(self, path: Path, header: TraceHeader | None = None) -> None:
        self.path = path
        self._translation: Callable[[TraceRecord], TraceRecord] | None = None
        self._lengths: list[tuple[int, int]] = []  # of translated records
        if header is None and not path.exists():
            raise FileNotFoundError(path)
        with saving(path):
            if header is not None:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)
            self._file = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            with saving(path):
                self.header = self._open(header)
            if header not in (None, self.header):
                raise TraceError(
                    f"{path} has the answers of another model ({self.header.target}). Remove it "
                    "with 'localspec distill --forget', or name another recording."
                )
            self._read_rows()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        self._file.close()

    def tokens(self, *, held_back: bool) -> int:
        return sum(self._rows[n].answer for n in self.numbers(held_back=held_back))

    def numbers(self, *, held_back: bool) -> list[int]:
        return [i for i, row in enumerate(self._rows) if bool(row.flags & HELD_BACK) == held_back]

    @property
    def chats(self) -> dict[bytes, bool]:
        """Keys of the answers of chats, in order, and whether they are held back."""
        return {row.key: bool(row.flags & HELD_BACK) for row in self._rows if row.flags & CHAT}

    def translate(self, translation: Callable[[TraceRecord], TraceRecord]) -> None:
        """Read records in other tokens from now on."""
        self._translation = translation
        records = map(self.record, range(len(self)))
        self._lengths = [(len(record.prompt), len(record.answer)) for record in records]

    def lengths(self, number: int) -> tuple[int, int]:
        """Tokens of prompt and answer."""
        row = self._rows[number]
        return self._lengths[number] if self._translation else (row.prompt, row.answer)

    def record(self, number: int) -> TraceRecord:
        row = self._rows[number]
        with self._reading():
            found = self._file.execute("SELECT body FROM records WHERE number = ?", row[:1])
            (body,) = found.fetchone()
            values = np.frombuffer(body, self.header.layout(row.prompt, row.answer))[0]
            if max(values["tokens"].max(), values["ids"].max(initial=0)) >= self.header.size:
                raise ValueError("an answer is damaged")
        tokens = values["tokens"].astype(np.int64)
        record = TraceRecord(
            row.key,
            tokens[: row.prompt],
            tokens[row.prompt :],
            values["ids"].astype(np.int64),
            values["log_p"].astype(np.float32),
            values["rest"].astype(np.float32),
            bool(row.flags & HELD_BACK),
            bool(row.flags & CHAT),
        )
        return record if self._translation is None else self._translation(record)

    def append(self, record: TraceRecord) -> None:
        """Add a record, unless its key exists; a TraceError leaves the trace as it was."""
        flags = HELD_BACK * record.held_back | CHAT * record.chat
        counts = len(record.prompt), len(record.answer)
        body = np.empty(1, self.header.layout(*counts))
        body["tokens"] = np.concatenate([record.prompt, record.answer])
        for name in ("ids", "log_p", "rest"):
            body[name] = getattr(record, name)
        facts = (record.key, flags, *counts)
        with saving(self.path):
            made = self._file.execute(
                "INSERT OR IGNORE INTO records (key, flags, prompt, answer, body)"
                " VALUES (?, ?, ?, ?, ?)",
                (*facts, body.tobytes()),
            )
        if made.rowcount:
            self._rows.append(_Row(int(made.lastrowid or 0), *facts))
        self.keys.add(record.key)

    def erase(self, keys: Collection[bytes]) -> None:
        """Erase these records; raises TraceError."""
        with saving(self.path):
            self._file.executemany("DELETE FROM records WHERE key = ?", [(key,) for key in keys])
            self._file.execute("VACUUM")
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._read_rows()

    def _open(self, header: TraceHeader | None) -> TraceHeader:
        try:
            self._file.execute("PRAGMA secure_delete = ON")
            if header is not None:
                self._file.execute("PRAGMA journal_mode = WAL")
                with self._file:
                    self._file.execute("BEGIN IMMEDIATE")
                    for table in _TABLES:
                        self._file.execute(table)
                    self._file.execute(
                        "INSERT INTO header SELECT ? WHERE NOT EXISTS (SELECT 1 FROM header)",
                        (json.dumps(asdict(header)),),
                    )
            (facts,) = self._file.execute("SELECT facts FROM header").fetchone()
            return TraceHeader(**json.loads(facts))
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
                raise
            raise TraceError(
                f"{self.path} is not a recording of 'localspec distill', or is damaged or of an "
                "older version. Remove it, and record again."
            ) from None

    def _read_rows(self) -> None:
        with self._reading():
            found = self._file.execute(
                "SELECT number, key, flags, prompt, answer FROM records ORDER BY number"
            )
            self._rows = [_Row(*row) for row in found]
            if any([*map(type, row)] != [int, bytes, int, int, int] for row in self._rows):
                raise ValueError("an answer is damaged")
        self.keys = {row.key for row in self._rows}

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise TraceError(
                f"{self.path} cannot be read: {error}. Remove it, and record again."
            ) from None


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn failures of the disk into a TraceError."""
    try:
        yield
    except (sqlite3.Error, OSError, RuntimeError) as error:  # torch raises the latter, too
        why = getattr(error, "strerror", None) or error
        raise TraceError(
            f"{path} cannot be written: {why}. What was saved before is kept. {paths.ADVICE} Then "
            "run the same command again."
        ) from None
