"""Traces: what was appended is what is read, and no accident loses more than the last answer."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.distill.trace import Trace, TraceHeader, TraceRecord, bytes_of
from localspec.errors import TraceError
from tests.distill.traces import HEADER, answer, trace_of


def same(one: TraceRecord, other: TraceRecord) -> bool:
    """But for what is rounded: probabilities are kept in 16 bits."""
    rounded = all(
        np.allclose(getattr(one, name), getattr(other, name), rtol=1e-3, atol=1e-4)
        for name in ("log_p", "rest")
    )
    equal = all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("prompt", "answer", "ids")
    )
    flags = (one.key, one.held_back, one.given) == (other.key, other.held_back, other.given)
    return rounded and equal and flags


@pytest.mark.parametrize("size", [97, 1 << 16, (1 << 16) + 1, 250_000])
def test_what_is_appended_is_read(tmp_path: Path, size: int) -> None:
    header = replace(HEADER, size=size)
    given = [answer(n, held_back=n == 1, header=header) for n in range(3)]
    given[2] = replace(given[2], given=True)
    with Trace(tmp_path / "t", header) as trace:
        for record in given:
            trace.append(record)
        assert all(same(trace.record(n), given[n]) for n in range(3))
    with Trace(tmp_path / "t") as trace:
        assert trace.header == header
        assert all(same(trace.record(n), given[n]) for n in range(3))
        assert trace.numbers(held_back=True) == [1]
        assert trace.keys == {record.key for record in given}
        counts = [len(record.answer) for record in given]
        assert trace.tokens(held_back=True) == counts[1]
        assert trace.tokens(held_back=False) == counts[0] + counts[2]


def test_sizes_are_foretold(tmp_path: Path) -> None:
    Trace(tmp_path / "t", HEADER).close()
    empty, record = (tmp_path / "t").stat().st_size, answer(0)
    with Trace(tmp_path / "t", HEADER) as trace:
        trace.append(record)
    taken = (tmp_path / "t").stat().st_size - empty
    assert taken == bytes_of(HEADER, len(record.prompt), len(record.answer))


def test_a_piece_of_an_answer_is_overwritten(tmp_path: Path) -> None:
    """Wherever a process was killed while it appended."""
    path = tmp_path / "t"
    trace_of(path, 2)
    two = path.stat().st_size
    with Trace(path, HEADER) as trace:
        trace.append(answer(2))
    whole = path.read_bytes()
    last = answer(5)
    for cut in range(two, two + 40):
        path.write_bytes(whole[:cut])
        with Trace(path, HEADER) as trace:
            assert len(trace) == 2
            trace.append(last)
        with Trace(path) as trace:
            assert (len(trace), trace.damaged) == (3, 0)
            assert same(trace.record(2), last)


def test_damage_costs_one_answer(tmp_path: Path) -> None:
    path = tmp_path / "t"
    trace_of(path, 3)
    data = bytearray(path.read_bytes())
    with Trace(path) as trace:
        at, *_ = trace._places[1]
    data[at + 30] ^= 1
    path.write_bytes(bytes(data))
    with Trace(path, HEADER) as trace:
        assert (len(trace), trace.damaged) == (2, 1)
        assert same(trace.record(1), answer(2))
        trace.append(answer(9))
    with Trace(path) as trace:
        assert same(trace.record(2), answer(9))


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    trace_of(tmp_path / "inside" / "t", 1)
    assert (tmp_path / "inside" / "t").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("content", [b"", b"GGUF" * 8, b"localspec-trace1\xff\xff\xff\xff{"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TraceError, match=r"not a trace|damaged"):
        Trace(tmp_path / "t")


def test_another_targets_is_refused(tmp_path: Path) -> None:
    trace_of(tmp_path / "t", 1)
    with pytest.raises(TraceError, match="another model"):
        Trace(tmp_path / "t", TraceHeader("other.gguf", "1" * 16, "f" * 24, 97, 4))


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    class Full:
        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def write(self, data: bytes) -> int:
            self._file.write(data[:7])
            self._file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")

    trace_of(tmp_path / "t", 2)
    with Trace(tmp_path / "t", HEADER) as trace:
        trace._file = Full(trace._file)  # type: ignore[assignment]
        with pytest.raises(TraceError, match=r"No space left on device.*Make room"):
            trace.append(answer(2))
        assert len(trace) == 2
    with Trace(tmp_path / "t") as trace:
        assert same(trace.record(1), answer(1))
