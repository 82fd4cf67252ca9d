"""What is recorded while chatting: kept beside other answers, and gone with its conversation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from localspec.decoding.logprobs import TokenLogprob
from localspec.distill import chats, folders, training
from localspec.distill.trace import Trace
from localspec.errors import TraceError
from tests.distill.traces import HEADER, answer

TOLD = [
    TokenLogprob(5, math.log(0.4), ((7, math.log(0.5)), (5, math.log(0.4)), (1, math.log(0.05)))),
    TokenLogprob(2, math.log(0.7), ((2, math.log(0.7)), (3, math.log(0.2)), (9, math.log(0.1)))),
]


@pytest.fixture
def folder(home: Path) -> Path:
    return folders.folder_of(Path("toy.gguf"), HEADER.identity)


def keep(folder: Path, conversation: str, *prompt: int) -> None:
    told = [each._replace(top=(*each.top, (60, -9.0))) for each in TOLD]  # as many as HEADER.k
    chats.keep(folder, HEADER, conversation, prompt, told)


def test_an_answer_is_kept_once_with_what_was_likely(folder: Path) -> None:
    keep(folder, "a", 1, 2, 3)
    keep(folder, "a", 1, 2, 3)
    keep(folder, "a", 1, 2, 3, 5, 2, 8)  # what was said next
    with Trace(folder / folders.TRACE) as trace:
        assert len(trace) == len(trace.chats) == 2
        record = trace.record(0)
    assert (record.prompt.tolist(), record.answer.tolist()) == ([1, 2, 3], [5, 2])
    assert record.ids.tolist() == [[7, 5, 1, 60], [2, 3, 9, 60]]
    assert np.exp(record.log_p[0, :2]) == pytest.approx([0.5, 0.4], abs=1e-3)
    assert record.rest == pytest.approx([0.05, 0.0], abs=1e-3)
    assert (record.chat, record.given) == (True, False)


def test_some_conversations_are_held_back_as_a_whole(folder: Path) -> None:
    for turn in (1, 2):
        for number in range(20):
            keep(folder, f"conversation {number}", *range(1, 3 + turn))
    with Trace(folder / folders.TRACE) as trace:
        held = [trace.record(n).held_back for n in range(40)]
        assert held[:20] == held[20:] == [number in (1, 9, 17) for number in range(20)]
        # A night's training starts from there.
        assert training.plan_steps(trace, 64, 32, 2, 0) > 0


def test_with_a_conversation_goes_what_was_recorded_of_it(folder: Path, tmp_path: Path) -> None:
    with Trace(folder / folders.TRACE, HEADER) as trace:
        trace.append(answer(1))
    for conversation in ("stays", "goes", "stays"):
        keep(folder, conversation, 1, 2, len(conversation))
    keep(folder, "goes", 1, 2, 9)
    (folder / "run-1").mkdir()  # a training that read it
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
    keep(folder, "goes", 1, 2, 9)
    assert chats.forget() == 2
    (shown,) = folders.recorded()
    assert (shown.answers, shown.chats) == (1, 0)


def test_a_trace_that_cannot_be_read_is_told_and_stops_nothing(folder: Path) -> None:
    keep(folder, "a", 1, 2, 3)
    broken = folder.with_name("broken")
    broken.mkdir()
    (broken / folders.TRACE).write_bytes(b"nonsense")
    with pytest.raises(TraceError, match=r"broken.*is not a trace"):
        chats.forget(["a"])
    with Trace(folder / folders.TRACE) as trace:
        assert len(trace) == 0
