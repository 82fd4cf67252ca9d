"""The writer's thread: it writes in order, completely, and no more often than needed."""

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
from tests.history.histories import as_on_disk, conversation_of, rows
from tests.support.patches import record_calls

SOON = 30.0
"""Seconds; far more than anything here takes."""


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "history.db", patience=0.05, retry=0.01)
    yield history
    history.close()


@pytest.fixture
def opened() -> threading.Event:
    """Unset while the history is being opened, which holds up all writes."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def writer(history: History, opened: threading.Event) -> Iterator[HistoryWriter]:
    def make() -> History:
        assert opened.wait(SOON)
        return history

    writer = HistoryWriter(make, on_trouble=print)
    yield writer
    writer.close()


def test_streaming_states_are_coalesced(
    history: History,
    writer: HistoryWriter,
    opened: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened.clear()
    conversation = conversation_of("one")
    writer.put(conversation, conversation.path()[0])
    answer = conversation.add(ASSISTANT, "", state=STREAMING)
    for number in range(500):
        answer.content += f"{number} "
        writer.streaming(conversation, answer)
    written = record_calls(monkeypatch, history, "put")
    opened.set()
    assert writer.flush(SOON)
    assert len(written) == 2, "the question, and the newest state of the answer"
    assert as_on_disk(history, conversation) == conversation
    answer.content += "more"
    writer.streaming(conversation, answer)
    writer.close()
    assert as_on_disk(history, conversation) == conversation


def test_conversation_deleted_elsewhere_is_restored(
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


def test_unused_history_is_not_opened() -> None:
    assert HistoryWriter(lambda: pytest.fail("opened"), on_trouble=print).close()


def test_unwritable_message_does_not_stop_the_writer(
    history: History, writer: HistoryWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = conversation_of("one")
    broken = conversation.add(USER, "two")
    broken.created = float("nan")  # which SQLite has no number for
    assert not writer.put(conversation, broken).result(SOON)
    assert "The history could not be written" in capsys.readouterr().out
    broken.created = 1.0
    assert writer.put(conversation, broken).result(SOON)
    assert as_on_disk(history, conversation) == conversation


@pytest.mark.nightly
def test_exit_without_close_loses_nothing(tmp_path: Path) -> None:
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
