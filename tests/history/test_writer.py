"""The writer's thread: it writes in order, completely, and no more often than needed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.conversation import ASSISTANT, STREAMING, USER
from localspec.history.history import History
from localspec.history.writer import HistoryWriter
from tests.history.histories import as_on_disk, conversation_of, locked, rows, writing

SOON = 30.0
"""Seconds; far more than anything here takes."""


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "history.db", patience=0.05, retry=0.01)
    yield history
    history.close()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def writer(history: History, told: list[str]) -> Iterator[HistoryWriter]:
    writer = HistoryWriter(lambda: history, on_trouble=told.append)
    yield writer
    writer.close()


def test_what_is_told_is_what_it_was_when_it_was_told(
    history: History, writer: HistoryWriter
) -> None:
    """Block the writer, so that everything changes before it is written."""
    release = threading.Event()
    conversation = conversation_of("one")
    with writing(history):
        holding = threading.Thread(target=release.wait)
        holding.start()
        answer = conversation.add(ASSISTANT, "half", state="stopped")
        answer.stats, answer.spans = {"by": {"ngram": 1}}, [(4, "target")]
        first = writer.put(conversation, conversation.path()[0])
        second = writer.put(conversation, answer)
        answer.content = "changed"
        answer.stats["by"]["ngram"] = 2
        answer.spans.append((3, "n-gram"))
        conversation.title = "changed"
    release.set()
    holding.join()
    assert first.result(SOON)
    assert second.result(SOON)
    found = as_on_disk(history, conversation)
    assert found.title == "one"
    last = found.path()[-1]
    assert (last.content, last.stats, last.spans) == ("half", {"by": {"ngram": 1}}, [(4, "target")])


def test_of_a_growing_answer_the_newest_state_is_written(
    history: History, writer: HistoryWriter
) -> None:
    """On a slow disk, of the states that arrive during a write only the last is written."""
    conversation = conversation_of("one")
    assert writer.put(conversation, conversation.path()[0]).result(SOON)
    answer = conversation.add(ASSISTANT, "", state=STREAMING)
    with writing(history):
        for number in range(500):
            answer.content += f"{number} "
            writer.streaming(conversation, answer)
    assert writer.flush(SOON)
    assert growing(history) == [(answer.content,)]
    answer.content += "more"
    writer.streaming(conversation, answer)
    writer.close()
    assert growing(history) == [(answer.content,)]


def test_what_another_program_deletes_while_it_is_answered_is_kept_whole(
    history: History, writer: HistoryWriter
) -> None:
    conversation = conversation_of("one", "two", "three")
    for message in conversation.path():
        writer.put(conversation, message)
    answer = conversation.add(ASSISTANT, "fo", state=STREAMING)
    writer.put(conversation)
    writer.streaming(conversation, answer)
    assert writer.flush(SOON)
    with closing(History(history.path)) as other:
        assert other.delete([conversation.id]) == 1
    answer.content += "ur"
    writer.streaming(conversation, answer)
    assert writer.flush(SOON)
    answer.state = "complete"
    assert writer.put(conversation, answer).result(SOON)
    assert as_on_disk(history, conversation) == conversation


def growing(history: History) -> list[tuple[object, ...]]:
    return rows(history.path, "SELECT content FROM messages WHERE state = 'streaming'")


def test_a_listener_that_fails_does_not_stop_it(history: History) -> None:
    def fail(text: str) -> None:
        raise RuntimeError(text)

    writer = HistoryWriter(lambda: history, on_trouble=fail)
    conversation = conversation_of("one")
    with locked(history.path):
        assert not writer.put(conversation, conversation.path()[0]).result(SOON)
    assert writer.close()
    assert as_on_disk(history, conversation) == conversation


def test_what_cannot_be_written_at_all_does_not_stop_it(
    history: History, writer: HistoryWriter, told: list[str]
) -> None:
    conversation = conversation_of("one")
    broken = conversation.add(USER, "two")
    broken.created = object()  # type: ignore[assignment]
    assert writer.put(conversation, broken).result(SOON) is False
    assert told
    broken.created = 1.0
    assert writer.put(conversation, broken).result(SOON)
    assert as_on_disk(history, conversation) == conversation


@pytest.mark.nightly
def test_a_program_that_forgets_to_close_it_loses_nothing(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from localspec.history.history import History
from localspec.history.writer import HistoryWriter
from tests.history.histories import conversation_of
writer = HistoryWriter(lambda: History(Path(sys.argv[1])), on_trouble=print)
for number in range(20):
    conversation = conversation_of(f"text {number}")
    writer.put(conversation, conversation.path()[0])
"""
    path = tmp_path / "history.db"
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=120)
    assert rows(path, "SELECT count(*) FROM messages") == [(20,)]
