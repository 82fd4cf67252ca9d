"""Trouble with the file: the chat continues, the user is informed, and no data is lost."""

import errno
import fcntl
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localspec.chat.conversation import ASSISTANT, STREAMING
from localspec.errors import HistoryError
from localspec.history.schema import APPLICATION, MIGRATIONS
from localspec.history.trouble import KEPT_AGAIN, trouble
from tests.history.histories import (
    assert_holds,
    locked,
    notices,
    open_history,
    rows,
    without_root,
    write_conversation,
)
from tests.support.patches import fail_with, files_of_at_most


def test_file_removed_while_open(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history.db")
    write_conversation(history, "before")
    for file in tmp_path.iterdir():
        file.unlink()
    conversation = write_conversation(history, "after")
    assert "was removed or replaced" in notices(history)
    history.close()
    assert_holds(history.path, conversation)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "lockf", fail_with(OSError(number, "no locks")))
    for message in ("database is locked", "disk I/O error"):  # SQLite's, for the one and the other
        found = trouble(sqlite3.OperationalError(message), tmp_path / "history.db")
        assert "on a file system without locks" in found.text
    denied = trouble(PermissionError(errno.EACCES, "no"), tmp_path / "history.db")
    assert denied.kind == "read-only"


def test_locked_while_writing(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history.db")
    before = write_conversation(history, "before")
    with locked(history.path):
        during = write_conversation(history, "during", "the walrus", kept=False)
        assert history.waiting
        assert (history.trouble and history.trouble.kind) == "locked"
        assert notices(history).count("Another program") == 1  # however often it was tried
        # What waits is shown as if it were kept, and WAL lets the rest be read.
        listed = [(each.title, each.messages) for each in history.list()]
        assert listed == [("during", 2), ("before", 1)]
        assert history.count() == 2
        assert history.load(during.id) == during
        assert history.load(before.id) == before
        assert [hit.conversation for hit in history.search("walrus")] == [during.id]
        assert history.find("1") == during.id
        assert history.find(during.id[:9]) == during.id
    assert history.drain()
    assert notices(history) == KEPT_AGAIN
    assert history.trouble is None
    history.close()
    assert_holds(history.path, before, during)


def test_waiting_messages_are_merged(tmp_path: Path) -> None:
    history = open_history(tmp_path / "history.db")
    conversation = write_conversation(history, "one", "two")
    with locked(history.path):
        conversation.title, conversation.titled_by = "renamed", "user"
        answer = conversation.add(ASSISTANT, "thr", state=STREAMING)
        assert not history.put(conversation, [answer])
        assert (history.list()[0].messages, history.list()[0].title) == (3, "renamed")
        answer.content += "ee"
        assert not history.put(conversation, [answer])
        assert history.load(conversation.id) == conversation
    for more in (" and more", ", and more"):
        answer.content += more
        assert history.put(conversation, [answer])
    assert history.load(conversation.id) == conversation
    answer.state = "complete"
    assert history.put(conversation, [answer])
    history.close()
    assert_holds(history.path, conversation)


@pytest.mark.parametrize("beside", [True, False])
def test_unsaved_messages_are_written_to_a_file(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    history = open_history(tmp_path / "home" / "history.db")
    with locked(history.path):
        write_conversation(history, "one", kept=False)
        notices(history)
        if not beside:
            history.path.parent.rename(tmp_path / "elsewhere")
            history.path.parent.touch()
        assert not history.close()
    (file,) = history.rescued
    assert (file.parents[1] == history.path.parent) is beside
    assert file.parent.stat().st_mode & 0o077 == 0
    assert "one" in file.read_text()
    assert f"could be kept in {history.path}. They are in {file}." in notices(history)


def test_full_disk_keeps_messages_in_memory(tmp_path: Path) -> None:
    """A limit of the file size stands for a full disk."""
    history = open_history(tmp_path / "history.db")
    with files_of_at_most(300_000):
        long = (f"{n} " + "x" * 50_000 for n in range(10))
        conversation = write_conversation(history, *long, kept=False)
        assert "New messages are kept in memory only" in notices(history)
        assert history.list()[0].messages == 10
    answer = conversation.add(ASSISTANT, "after")
    assert history.put(conversation, [answer])
    assert notices(history) == KEPT_AGAIN
    history.close()
    assert_holds(history.path, conversation)
    with files_of_at_most(1_000):  # where not even its log can be begun
        history = open_history(history.path)
        assert "check permissions, disk and 'ulimit -f'" in notices(history)
    assert history.close()


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.parametrize("folder_too", [False, True])
@pytest.mark.parametrize("tidy", [False, True])
def test_read_only_file(
    open_to_all: Path, folder_too: bool, tidy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCALSPEC_HOME", str(open_to_all))  # where learned data are looked for
    path = open_to_all / "history.db"
    first = open_history(path)
    before = write_conversation(first, "before")
    if tidy:
        first.close()
    for file in open_to_all.iterdir():
        file.chmod(0o444)
    open_to_all.chmod(0o555 if folder_too else 0o777)
    try:
        with without_root():
            history = open_history(path)
            assert (history.trouble and history.trouble.kind) == "read-only"
            assert "kept in memory only, and in separate files at the end" in notices(history)
            assert history.load(before.id) == before
            during = write_conversation(history, "during", kept=False)
            assert [each.title for each in history.list()] == ["during", "before"]
            with pytest.raises(HistoryError, match="cannot be written"):
                history.delete([before.id])
            assert history.delete([during.id]) == 1
            assert history.take_notices() == []  # reading well is no news
            during = write_conversation(history, "again", kept=False)
        # Somebody puts it right.
        open_to_all.chmod(0o777)
        for file in open_to_all.iterdir():
            file.chmod(0o666)
        assert history.drain()
        assert notices(history) == KEPT_AGAIN
        history.close()
    finally:
        open_to_all.chmod(0o755)
    first.close()
    assert_holds(path, before, during)


@pytest.mark.parametrize("version", [0, 1])
def test_read_only_file_of_an_older_version(open_to_all: Path, version: int) -> None:
    path = open_to_all / "history.db"
    for migration in MIGRATIONS[:version]:
        for statement in migration:
            rows(path, statement)
    rows(path, f"PRAGMA application_id = {APPLICATION if version else 0}")
    rows(path, f"PRAGMA user_version = {version}")
    path.chmod(0o444)
    open_to_all.chmod(0o555)
    try:
        with without_root():
            history = open_history(path)
            conversation = write_conversation(history, "during", kept=False)
    finally:
        open_to_all.chmod(0o777)
    path.chmod(0o666)
    assert history.drain()
    history.close()
    assert_holds(path, conversation)


def test_invalid_paths(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "file" / "history.db", tmp_path / "folder.db", Path("/proc/x/h.db")):
        history = open_history(path)
        assert history.trouble is not None
        assert str(path) in notices(history)
        write_conversation(history, "one", kept=False)
        assert history.list()[0].title == "one"
        history.close()


@pytest.mark.parametrize("foreign", [False, True])
def test_foreign_and_newer_files_are_not_changed(tmp_path: Path, foreign: bool) -> None:
    path = tmp_path / "history.db"
    if foreign:
        rows(path, "CREATE TABLE things (x)")
    else:
        open_history(path).close()
        rows(path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes()
    history = open_history(path)
    assert (history.trouble and history.trouble.kind) == ("foreign" if foreign else "newer")
    assert "is not changed" in notices(history)
    write_conversation(history, "one", kept=False)
    history.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "The disk is full"),
        (OSError(errno.EIO, "Input/output error"), "cannot be used: Input/output error"),
        (sqlite3.OperationalError("database or disk is full"), "The disk is full"),
        (sqlite3.OperationalError("disk I/O error"), "cannot be used: disk I/O error"),
    ],
)
def test_disk_errors_are_explained(error: Exception, told: str, tmp_path: Path) -> None:
    text = trouble(error, tmp_path / "history.db").text
    assert told in text
    assert str(tmp_path / "history.db") in text
    assert "kept in memory only" in text
