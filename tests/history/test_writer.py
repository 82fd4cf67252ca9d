"""The thread that writes: in order, whole, no more often than needed, and whatever happens."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.conversation import (
    ASSISTANT,
    COMPLETE,
    STREAMING,
    USER,
    Conversation,
    Message,
)
from localspec.errors import HistoryError
from localspec.history.history import History
from localspec.history.trouble import KEPT_AGAIN
from localspec.history.writer import Scribe
from tests.history.histories import conversation_of, locked, rows

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
def scribe(history: History, told: list[str]) -> Iterator[Scribe]:
    scribe = Scribe(history, on_trouble=told.append, interval=0.0)
    yield scribe
    scribe.close()


def as_on_disk(history: History, conversation: Conversation) -> Conversation:
    """As another process would find it."""
    other = History(history.path)
    try:
        return other.load(conversation.id)
    finally:
        other.close()


def test_what_is_sent_is_on_disk(history: History, scribe: Scribe) -> None:
    conversation = Conversation(system="Be brief.")
    message = conversation.add(USER, "one")
    assert scribe.sent(conversation, message).result(SOON)
    assert as_on_disk(history, conversation) == conversation


def test_what_is_told_is_what_it_was_when_it_was_told(history: History, scribe: Scribe) -> None:
    """Held up in the middle, so that everything changes before it is written."""
    release = threading.Event()
    conversation = conversation_of("one")
    with history._writing:
        holding = threading.Thread(target=release.wait)
        holding.start()
        answer = conversation.add(ASSISTANT, "half", state="stopped")
        answer.stats, answer.spans = {"by": {"ngram": 1}}, [(4, "target")]
        first = scribe.sent(conversation, conversation.path()[0])
        second = scribe.done(conversation, answer)
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
    assert (last.content, last.stats, last.spans) == (
        "half",
        {"by": {"ngram": 1}},
        [(4, "target")],
    )


def test_of_a_growing_answer_the_newest_state_is_written(history: History, told: list[str]) -> None:
    """The interval never ends here: only the first state, and what flush asks for, is written."""
    conversation = conversation_of("one")
    answer = Message("a" * 32, conversation.tip, ASSISTANT, "", 5.0, state=STREAMING)
    conversation.insert(answer)
    with Scribe(history, on_trouble=told.append, interval=1e9) as scribe:
        assert scribe.sent(conversation, conversation.path()[0]).result(SOON)
        scribe.streaming(conversation.id, answer)
        assert scribe.flush(SOON)
        pieces = "SELECT at, text FROM growth ORDER BY at"
        assert rows(history.path, pieces) == [(0, "")]
        for number in range(500):
            answer.content += f"{number} "
            scribe.streaming(conversation.id, answer)
        assert scribe.saved(conversation).result(SOON)  # overtakes it
        assert rows(history.path, pieces) == [(0, "")]
        assert scribe.flush(SOON)
        assert rows(history.path, pieces) == [(0, answer.content)]
        answer.content += "more"
        scribe.streaming(conversation.id, answer)
    # Closing writes what is left.
    assert rows(history.path, "SELECT at FROM growth ORDER BY at") == [
        (0,),
        (len(answer.content) - 4,),
    ]


def test_growing_answers_are_written_without_being_asked(history: History, scribe: Scribe) -> None:
    conversation = conversation_of("one")
    answer = conversation.add(ASSISTANT, "begun", state=STREAMING)
    scribe.streaming(conversation, answer)
    found: list[tuple[object, ...]] = []
    while not found:  # the interval is nothing here, so it takes as long as a write
        found = rows(history.path, "SELECT text FROM growth")
    assert found == [("begun",)]


def test_done_is_the_last_word(history: History, scribe: Scribe) -> None:
    conversation = conversation_of("one")
    scribe.sent(conversation, conversation.path()[0])
    answer = conversation.add(ASSISTANT, "", state=STREAMING)
    for number in range(50):
        answer.content += f"{number} "
        scribe.streaming(conversation.id, answer)
    answer.state, answer.stats = COMPLETE, {"tokens": 50}
    assert scribe.done(conversation.id, answer).result(SOON)
    assert scribe.flush(SOON)
    assert as_on_disk(history, conversation) == conversation
    assert rows(history.path, "SELECT count(*) FROM growth") == [(0,)]


def test_answers_of_two_conversations_do_not_hold_each_other_up(
    history: History, scribe: Scribe
) -> None:
    conversations = [conversation_of(f"question {number}") for number in range(3)]
    for conversation in conversations:
        scribe.streaming(conversation, conversation.add(ASSISTANT, "answer", state=STREAMING))
    assert scribe.flush(SOON)
    assert rows(history.path, "SELECT count(*) FROM growth") == [(3,)]


def test_trouble_is_told_once_and_its_end_too(
    history: History, scribe: Scribe, told: list[str]
) -> None:
    conversation = conversation_of("one")
    assert scribe.sent(conversation, conversation.path()[0]).result(SOON)
    with locked(history.path):
        for text in ("two", "three", "four"):
            message = conversation.add(USER, text)
            assert scribe.sent(conversation, message).result(SOON) is False
        assert len(told) == 1
        assert "Another program keeps the history" in told[0]
        assert not scribe.flush(SOON)
    while history.behind:  # it tries again by itself
        threading.Event().wait(0.01)
    assert scribe.flush(SOON)
    assert told[1:] == [KEPT_AGAIN]
    assert as_on_disk(history, conversation) == conversation


def test_what_opening_found_is_told(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"no database " * 1000)
    told: list[str] = []
    with Scribe(History(path), on_trouble=told.append) as scribe:
        assert scribe.flush(SOON)
        assert len(told) == 1
        assert "was damaged" in told[0]
    scribe._history.close()


def test_a_listener_that_fails_does_not_stop_it(history: History) -> None:
    def fail(text: str) -> None:
        raise RuntimeError(text)

    scribe = Scribe(history, on_trouble=fail)
    conversation = conversation_of("one")
    with locked(history.path):
        assert not scribe.sent(conversation, conversation.path()[0]).result(SOON)
    assert scribe.close()
    assert as_on_disk(history, conversation) == conversation


def test_what_cannot_be_written_at_all_does_not_stop_it(
    history: History, scribe: Scribe, told: list[str]
) -> None:
    conversation = conversation_of("one")
    broken = conversation.add(USER, "two")
    broken.created = object()  # type: ignore[assignment]
    assert scribe.sent(conversation, broken).result(SOON) is False
    assert told
    broken.created = 1.0
    assert scribe.sent(conversation, broken).result(SOON)
    assert as_on_disk(history, conversation) == conversation


def test_deleted_it_stays_deleted(history: History, scribe: Scribe) -> None:
    conversation = conversation_of("one")
    assert scribe.sent(conversation, conversation.path()[0]).result(SOON)
    answer = conversation.add(ASSISTANT, "half", state=STREAMING)
    with history._writing:
        scribe.streaming(conversation.id, answer)
        removed = scribe.delete([conversation.id])
        scribe.streaming(conversation.id, answer)
    assert removed.result(SOON) == 1
    assert scribe.done(conversation, answer).result(SOON) is False
    assert scribe.flush(SOON)
    assert history.count() == 0
    assert rows(history.path, "SELECT count(*) FROM messages") == [(0,)]


def test_what_cannot_be_deleted_is_said(history: History, scribe: Scribe) -> None:
    conversation = conversation_of("one")
    scribe.sent(conversation, conversation.path()[0]).result(SOON)
    with locked(history.path), pytest.raises(HistoryError, match="locked"):
        scribe.delete([conversation.id]).result(SOON)
    # It is still there, and can be written to.
    assert scribe.sent(conversation, conversation.add(USER, "two")).result(SOON)


def test_a_file_that_vanishes_gets_the_whole_conversation_again(
    history: History, scribe: Scribe, told: list[str]
) -> None:
    conversation = conversation_of("one", "two")
    assert scribe.sent(conversation, conversation.path()[0]).result(SOON)
    for file in history.path.parent.iterdir():
        file.unlink()
    assert scribe.sent(conversation, conversation.add(USER, "three")).result(SOON)
    assert as_on_disk(history, conversation) == conversation
    assert len(told) == 1
    assert "removed or replaced" in told[0]


def test_giving_up_waiting_changes_nothing(history: History, scribe: Scribe) -> None:
    conversation = conversation_of("one")
    with history._writing:
        written = scribe.sent(conversation, conversation.path()[0])
        removed = scribe.delete(["nobody"])
        assert not written.cancel()
        assert not removed.cancel()
    assert written.result(SOON)
    assert removed.result(SOON) == 0


def test_closed_it_takes_nothing(history: History, told: list[str]) -> None:
    scribe = Scribe(history, on_trouble=told.append)
    assert scribe.close()
    assert scribe.close()
    conversation = conversation_of("one")
    assert scribe.sent(conversation, conversation.path()[0]).result(SOON) is False
    assert history.count() == 0


def test_a_program_that_forgets_to_close_it_loses_nothing(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from localspec.history.history import History
from localspec.history.writer import Scribe
from tests.history.histories import conversation_of
scribe = Scribe(History(Path(sys.argv[1])), on_trouble=print, interval=1e9)
for number in range(20):
    conversation = conversation_of(f"text {number}")
    scribe.sent(conversation, conversation.path()[0])
"""
    path = tmp_path / "history.db"
    subprocess.run([sys.executable, "-c", program, path], check=True, timeout=120)
    assert rows(path, "SELECT count(*) FROM messages") == [(20,)]
