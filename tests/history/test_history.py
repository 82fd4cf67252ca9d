"""Writing and reading conversations, also quickly in a large history."""

import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psutil
import pytest

from localspec.chat.conversation import (
    ASSISTANT,
    BY_MODEL,
    BY_USER,
    FAILED,
    INTERRUPTED,
    STREAMING,
    USER,
    Attachment,
    Conversation,
)
from localspec.history.history import History
from localspec.history.schema import APPLICATION, MIGRATIONS, connect, prepare
from tests.history.histories import as_on_disk, conversation_of, locked, open_history, rows
from tests.support.together import together


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path / "data" / "history.db")
    yield history
    history.close()


def store_and_reload(history: History, conversation: Conversation) -> Conversation:
    """Write a conversation, and read it as another process would."""
    assert history.put(conversation)
    for message in conversation.messages.values():
        assert history.put(conversation, [message])
    return as_on_disk(history, conversation)


def test_conversation_round_trip(history: History) -> None:
    conversation = Conversation(
        title="Título \U0001f98a",
        titled_by=BY_MODEL,
        system="Be brief.\0\n",
        max_tokens=100,
        sampling={"temperature": 0.5, "top_k": 3, "seed": 7},
        model="models/a.gguf",
        draft="none",
    )
    conversation.add(USER, "one", attachments=[Attachment("a.txt", "text\0\r\n")])
    answer = conversation.add(ASSISTANT, "two\n\n```py\nx\n```", model="tale", draft="small")
    answer.finish_reason = "stop"
    answer.stats = {"tokens": 3, "by": {"ngram": [1, 2.5]}, "none": None, "yes": True}
    answer.spans = [(3, "target"), (4, "n-gram"), (5, "target")]
    conversation.add(USER, "edited", parent=None)
    conversation.add(ASSISTANT, "", state=FAILED)
    conversation.select(answer.id)
    assert store_and_reload(history, conversation) == conversation


def test_list_is_newest_first(history: History) -> None:
    for number in range(7):
        store_and_reload(history, conversation_of(f"text {number}", created=100.0 + number))
    assert [each.title for each in history.list(limit=3)] == ["text 6", "text 5", "text 4"]
    assert [each.title for each in history.list(limit=3, offset=5)] == ["text 1", "text 0"]
    assert history.count() == 7
    oldest = history.load(history.list(offset=6)[0].id)
    again = oldest.add(USER, "again")
    again.created = oldest.updated = 999.0
    assert history.put(oldest, [again])
    first = history.list(limit=1)[0]
    assert (first.title, first.messages, first.updated) == ("text 0", 2, 999.0)


def test_renamed_title_is_kept(history: History) -> None:
    conversation = conversation_of("Where do foxes sleep")
    renamed = store_and_reload(history, conversation)
    renamed.title, renamed.titled_by = "Dens", BY_USER
    assert history.put(renamed)
    assert history.put(conversation, [conversation.add(ASSISTANT, "In a den.")])
    assert history.load(conversation.id).title == "Dens"
    assert [hit.message for hit in history.search("dens")] == [None]


def test_deleted_text_is_gone_from_the_file(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db")
    gone, stays = conversation_of("qwertzuiop " * 500), conversation_of("asdfghjkl")
    store_and_reload(history, stays)
    store_and_reload(history, gone)
    history.close()
    before = history.path.read_bytes()
    assert b"qwertz" in before
    history = History(tmp_path / "history.db")
    assert history.delete([gone.id, "nobody"]) == 1
    history.close()
    data = history.path.read_bytes()
    assert b"asdfghjkl" in data
    assert b"qwertz" not in data
    assert len(data) < len(before)
    assert [file.name for file in tmp_path.iterdir()] == ["history.db"]


def test_migration_from_version_1(tmp_path: Path) -> None:
    """Version 1 stored streaming answers in pieces."""
    path = tmp_path / "history.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        for statement in MIGRATIONS[0]:
            old.execute(statement)
        old.execute(f"PRAGMA application_id = {APPLICATION}")
        old.execute("PRAGMA user_version = 1")
        old.executescript("""
            INSERT INTO conversations (id, title, titled_by, created, updated)
                VALUES ('c', 'title', 'text', 1, 1);
            INSERT INTO messages (id, conversation, role, created, state, content)
                VALUES ('m', 'c', 'assistant', 1, 'streaming', '');
            INSERT INTO growth VALUES ('m', 4, 'more', NULL), ('m', 0, 'one ', NULL);
        """)
    history = History(path)
    (message,) = history.load("c").path()
    assert (message.content, message.state) == ("one more", INTERRUPTED)
    assert [hit.message for hit in history.search("more")] == ["m"]
    assert history.take_notices() == []
    history.close()


@pytest.mark.parametrize(
    "writer", [None, "", "nonsense", "1@0.0", "999999999@1.0", "99999999999999999999@1", "-1@2"]
)
def test_answer_of_a_dead_writer_is_interrupted(history: History, writer: str | None) -> None:
    conversation = conversation_of("question")
    history.put(conversation)
    answer = conversation.add(ASSISTANT, "half an ans", state=STREAMING)
    answer.spans = [(4, "target"), (7, "n-gram")]
    for message in conversation.path():
        history.put(conversation, [message])
    rows(history.path, "UPDATE messages SET writer = ? WHERE state = 'streaming'", writer)
    answer.state = INTERRUPTED
    assert history.load(conversation.id).messages[answer.id] == answer
    # That is written, and the answer can be found from now on.
    (state,) = rows(history.path, "SELECT state FROM messages WHERE id = ?", answer.id)
    assert state == (INTERRUPTED,)
    assert [hit.message for hit in history.search("half")] == [answer.id]


def test_answer_of_a_live_writer_is_left_alone(history: History) -> None:
    conversation = Conversation()
    answer = conversation.add(ASSISTANT, "one two", state=STREAMING)
    history.put(conversation, [answer])
    writer = psutil.Process().parent()
    assert writer is not None
    its = f"{writer.pid}@{writer.create_time():.2f}"
    rows(history.path, "UPDATE messages SET writer = ?", its)
    with closing(History(history.path)) as other:
        assert other.load(conversation.id).messages[answer.id] == answer


def test_opening_settles_unfinished_answers(history: History) -> None:
    conversation = conversation_of("question")
    answer = conversation.add(ASSISTANT, "half", state=STREAMING)
    history.put(conversation, [answer])
    rows(history.path, "UPDATE messages SET writer = '1@0.0'")
    with locked(history.path, "BEGIN IMMEDIATE"):
        other = open_history(history.path)
        assert other.list() == []
    assert [hit.message for hit in other.search("half")] == [answer.id], "once it is not locked"
    other.close()
    # It was not dead after all: it goes on, and nothing is lost.
    answer.content += " and whole"
    assert history.put(conversation, [answer])
    found = history.load(conversation.id).messages[answer.id]
    assert (found.content, found.state) == ("half and whole", STREAMING)
    answer.state = "complete"
    assert history.put(conversation, [answer])
    assert [hit.message for hit in history.search("half whole")] == [answer.id]


def test_concurrent_threads(history: History) -> None:
    def talk(number: int) -> None:
        conversation = conversation_of()
        history.put(conversation)
        for _ in range(15):
            message = conversation.add(USER, f"thread {number}")
            assert history.put(conversation, [message])
            assert history.load(conversation.id).messages[message.id] == message
            history.search("thread")
            history.list()

    assert together([partial(talk, number) for number in range(6)]) == [None] * 6
    assert sorted(each.messages for each in history.list()) == [15] * 6
    assert history.take_notices() == []


def test_readers_do_not_wait_for_writers(history: History) -> None:
    conversation = conversation_of("question")
    store_and_reload(history, conversation)
    writing = threading.Thread(target=history.put, args=(conversation,))
    with locked(history.path, "BEGIN IMMEDIATE"):
        writing.start()  # it waits for the lock
        assert history.load(conversation.id) == conversation
        assert history.search("question")
        assert writing.is_alive()
    writing.join()
    assert history.trouble is None


def test_file_is_durable_and_private(history: History) -> None:
    with closing(connect(history.path, "rw", 1.0)) as writer:
        prepare(writer, 1.0)
        for name, value in (("journal_mode", "wal"), ("synchronous", 2), ("secure_delete", 1)):
            assert writer.execute(f"PRAGMA {name}").fetchone() == (value,)
    assert stat.S_IMODE(history.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.path.parent.stat().st_mode) == 0o700
