"""Traces: reading, concurrent writing, deletion and failures."""

import math
import sqlite3
import subprocess
import sys
from collections import deque
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from localspec.decoding.logprobs import TokenLogprob
from localspec.distill import chats, folders, training
from localspec.distill.trace import Trace, TraceHeader, TraceRecord
from localspec.errors import TraceError
from tests.distill.traces import HEADER, answer, trace_of
from tests.support.patches import files_of_at_most


def same(one: TraceRecord, other: TraceRecord) -> bool:
    """Equality, with probabilities rounded to 16 bits."""
    rounded = ((one.log_p, other.log_p), (one.rest, other.rest))
    equal = ((one.prompt, other.prompt), (one.answer, other.answer), (one.ids, other.ids))
    return (
        all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in rounded)
        and all(np.array_equal(a, b) for a, b in equal)
        and (one.key, one.held_back) == (other.key, other.held_back)
    )


@pytest.mark.parametrize("size", [97, 1 << 16, (1 << 16) + 1, 250_000])
def test_appended_records_are_read(tmp_path: Path, size: int) -> None:
    header = replace(HEADER, size=size)
    given = [answer(n, held_back=n == 1, header=header) for n in range(3)]
    with Trace(tmp_path / "t", header) as trace:
        for record in given:
            trace.append(record)
        assert all(same(trace.record(n), given[n]) for n in range(3))
    with Trace(tmp_path / "t") as trace:
        assert trace.header == header
        assert all(same(trace.record(n), given[n]) for n in range(3))
        assert trace.numbers(held_back=True) == [1]
        assert trace.keys == {record.key for record in given}
        first, held, last = (len(record.answer) for record in given)
        assert (trace.tokens(held_back=True), trace.tokens(held_back=False)) == (held, first + last)


@pytest.mark.nightly
def test_killed_process_loses_no_record(tmp_path: Path) -> None:
    path = tmp_path / "t"
    code = """if True:
        import sys
        from pathlib import Path
        from tests.distill.traces import HEADER, answer
        from localspec.distill.trace import Trace
        trace = Trace(Path(sys.argv[1]), HEADER)
        for number in range(len(trace), 10_000):
            trace.append(answer(number))
            print(number, flush=True)
    """
    kept = -1
    for _ in range(3):
        command = [sys.executable, "-c", code, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                kept = int(line)
                if kept % 20 == 19:
                    process.kill()
                    break
        with Trace(path) as trace:
            assert len(trace) > kept
            assert all(same(trace.record(n), answer(n)) for n in range(len(trace)))


def test_two_writers(tmp_path: Path) -> None:
    with Trace(tmp_path / "t", HEADER) as one, Trace(tmp_path / "t", HEADER) as other:
        one.append(answer(1))
        other.append(answer(2))
        other.append(answer(1))
        assert (len(one), len(other)) == (1, 1)
    with Trace(tmp_path / "t") as trace:
        assert [same(trace.record(n), answer(n + 1)) for n in range(2)] == [True, True]


def test_erased_records_are_deleted_from_the_disk(tmp_path: Path) -> None:
    header = replace(HEADER, size=250_000)
    with Trace(tmp_path / "t", header) as trace:
        for number in range(3):
            trace.append(answer(number, header=header))
        erased = answer(1, header=header).answer.astype("<u4").tobytes()
        trace.erase([answer(1, header=header).key])
        assert [trace.record(n).key for n in range(2)] == [answer(n).key for n in (0, 2)]
        assert erased not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"GGUF" * 8, b"localspec-trace1\xff\xff\xff\xff{"])
def test_files_of_other_kinds(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TraceError, match=r"not a trace|damaged"):
        Trace(tmp_path / "t")


@pytest.mark.parametrize("change", ["body = randomblob(length(body))", "flags = NULL", "key = 1"])
def test_damaged_answer_is_reported(tmp_path: Path, change: str) -> None:
    trace_of(tmp_path / "t", 1)
    with closing(sqlite3.connect(tmp_path / "t")) as file, file:
        file.execute(f"UPDATE records SET {change}")
    with pytest.raises(TraceError, match=r"damaged\. Remove it"), Trace(tmp_path / "t") as trace:
        trace.record(0)


def test_trace_of_another_target_is_refused(tmp_path: Path) -> None:
    trace_of(tmp_path / "t", 1)
    with pytest.raises(TraceError, match="another model"):
        Trace(tmp_path / "t", TraceHeader("other.gguf", "1" * 16, "f" * 24, 97, 4))


def test_full_disk_keeps_earlier_records(tmp_path: Path) -> None:
    trace_of(tmp_path / "t", 2)
    with Trace(tmp_path / "t", HEADER) as trace:
        with files_of_at_most(40_000), pytest.raises(TraceError, match="Make room"):
            deque(map(trace.append, map(answer, range(2, 999))))
        count = len(trace)
    with Trace(tmp_path / "t") as trace:
        assert len(trace) == count
        assert all(same(trace.record(n), answer(n)) for n in range(count))


# Answers recorded from chats, which are deleted with their conversation.

LIKELIEST = ({7: 0.5, 5: 0.4, 1: 0.05, 60: 1e-4}, {2: 0.7, 3: 0.2, 9: 0.1, 60: 1e-4})
"""As many as HEADER.k."""
LOGPROBS = [
    TokenLogprob(token, math.log(top[token]), tuple((one, math.log(p)) for one, p in top.items()))
    for token, top in zip((5, 2), LIKELIEST, strict=True)
]


@pytest.fixture
def folder(home: Path) -> Path:
    return folders.folder_of(Path("toy.gguf"), HEADER.identity)


def record_turn(folder: Path, conversation: str, *prompt: int) -> None:
    chats.record_answer(folder, HEADER, conversation, prompt, LOGPROBS)


def test_answer_is_recorded_once_with_its_likeliest_tokens(folder: Path) -> None:
    record_turn(folder, "a", 1, 2, 3)
    record_turn(folder, "a", 1, 2, 3)
    record_turn(folder, "a", 1, 2, 3, 5, 2, 8)  # the next turn
    with Trace(folder / folders.TRACE) as trace:
        assert len(trace) == len(trace.chats) == 2
        record = trace.record(0)
    assert (record.prompt.tolist(), record.answer.tolist()) == ([1, 2, 3], [5, 2])
    assert record.ids.tolist() == [[7, 5, 1, 60], [2, 3, 9, 60]]
    assert np.exp(record.log_p[0, :2]) == pytest.approx([0.5, 0.4], abs=1e-3)
    assert record.rest == pytest.approx([0.05, 0.0], abs=1e-3)
    assert record.chat


def test_whole_conversations_are_held_back(folder: Path) -> None:
    for turn in (1, 2):
        for number in range(20):
            record_turn(folder, f"conversation {number}", *range(1, 3 + turn))
    with Trace(folder / folders.TRACE) as trace:
        held = [trace.record(n).held_back for n in range(40)]
        assert held[:20] == held[20:] == [number in (1, 9, 17) for number in range(20)]
        # A training may start from chats only.
        assert training.plan_steps(trace, 64, 32, 2, 0) > 0


def test_records_are_deleted_with_their_conversation(folder: Path, tmp_path: Path) -> None:
    with Trace(folder / folders.TRACE, HEADER) as trace:
        trace.append(answer(1))
    for conversation in ("stays", "goes", "stays"):
        record_turn(folder, conversation, 1, 2, len(conversation))
    record_turn(folder, "goes", 1, 2, 9)
    (folder / "run-1").mkdir()  # a training on these records
    with Trace(folder / folders.TRACE) as trace:
        stays = [trace.record(n) for n in (0, 1)]
        assert len(trace) == 4
    assert chats.forget(["goes", "never seen"]) == 2
    with Trace(folder / folders.TRACE) as trace:
        assert [trace.record(n).key for n in range(len(trace))] == [one.key for one in stays]
        assert np.array_equal(trace.record(1).ids, stays[1].ids)
    assert not (folder / "run-1").exists()
    (folder / "run-1").mkdir()
    assert chats.forget(["goes"]) == 0
    assert (folder / "run-1").exists()
    record_turn(folder, "goes", 1, 2, 9)
    assert chats.forget() == 2
    (shown,) = folders.recorded_targets()
    assert (shown.answers, shown.chats) == (1, 0)


@pytest.mark.parametrize("why", ["is not a recording", "is locked"])
def test_trace_that_cannot_be_erased_is_reported(
    folder: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.distill.trace.PATIENCE", 0.0)
    broken = folder.with_name("broken")
    for each in (folder, broken):
        record_turn(each, "a", 1, 2, 3)
    with closing(sqlite3.connect(broken / folders.TRACE)) as file:
        if why == "is locked":
            file.execute("BEGIN IMMEDIATE")
        else:
            (broken / folders.TRACE).write_bytes(b"nonsense")
        with pytest.raises(TraceError, match=f"broken.*{why}"):
            chats.forget(["a"])
    with Trace(folder / folders.TRACE) as trace:
        assert len(trace) == 0
