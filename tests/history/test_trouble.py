"""Trouble with the file: the chat continues, the user is informed, and no data is lost."""

from __future__ import annotations

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
    as_nobody,
    holds,
    locked,
    opened,
    rows,
    said,
    talk,
)
from tests.sessions.test_session_file import files_of_at_most

# Missing


def test_removed_while_it_is_open(tmp_path: Path) -> None:
    history = opened(tmp_path / "history.db")
    talk(history, "before")
    for file in tmp_path.iterdir():
        file.unlink()
    conversation, kept = talk(history, "after")
    assert kept
    assert "was removed or replaced" in said(history)
    history.close()
    holds(history.path, conversation)


# Locked


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_the_file_system_has_no_locks(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lockf(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    for message in ("database is locked", "disk I/O error"):  # SQLite's, for the one and the other
        found = trouble(sqlite3.OperationalError(message), tmp_path / "history.db")
        assert "on a file system without locks" in found.text
    denied = trouble(PermissionError(errno.EACCES, "no"), tmp_path / "history.db")
    assert denied.kind == "read-only"


def test_locked_while_writing(tmp_path: Path) -> None:
    history = opened(tmp_path / "history.db")
    before, _ = talk(history, "before")
    with locked(history.path):
        during, kept = talk(history, "during", "the walrus")
        assert not kept
        assert history.waiting
        assert history.trouble is not None
        assert history.trouble.kind == "locked"
        assert said(history).count("Another program") == 1  # however often it was tried
        # What waits is shown as if it were kept, and WAL lets the rest be read.
        assert [each.title for each in history.list()] == ["during", "before"]
        assert [each.messages for each in history.list()] == [2, 1]
        assert history.count() == 2
        assert history.load(during.id) == during
        assert history.load(before.id) == before
        assert [hit.conversation for hit in history.search("walrus")] == [during.id]
        assert history.find("1") == during.id
        assert history.find(during.id[:9]) == during.id
    assert history.drain()
    assert said(history) == KEPT_AGAIN
    assert history.trouble is None
    history.close()
    holds(history.path, before, during)


def test_what_was_said_meanwhile_joins_what_was_there(tmp_path: Path) -> None:
    history = opened(tmp_path / "history.db")
    conversation, _ = talk(history, "one", "two")
    with locked(history.path):
        conversation.title, conversation.titled_by = "renamed", "user"
        answer = conversation.add(ASSISTANT, "thr", state=STREAMING)
        assert not history.put(conversation, [answer])
        assert history.list()[0].messages == 3
        assert history.list()[0].title == "renamed"
        answer.content += "ee"
        assert not history.put(conversation, [answer])
        assert history.load(conversation.id) == conversation
    answer.content += " and more"
    assert history.put(conversation, [answer])
    answer.content += ", and more"
    assert history.put(conversation, [answer])
    assert history.load(conversation.id) == conversation
    answer.state = "complete"
    assert history.put(conversation, [answer])
    history.close()
    holds(history.path, conversation)


@pytest.mark.parametrize("beside", [True, False])
def test_what_cannot_be_kept_at_the_end_gets_a_file(
    beside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    history = opened(tmp_path / "home" / "history.db")
    with locked(history.path):
        talk(history, "one")
        said(history)
        if not beside:
            history.path.parent.rename(tmp_path / "elsewhere")
            history.path.parent.touch()
        assert not history.close()
    (file,) = history.rescued
    assert (file.parents[1] == history.path.parent) is beside
    assert file.parent.stat().st_mode & 0o077 == 0
    assert "one" in file.read_text()
    assert f"could be kept in {history.path}. They are in {file}." in said(history)


def test_no_room_for_the_file(tmp_path: Path) -> None:
    """It may not grow beyond some size: as if the disk were full."""
    history = opened(tmp_path / "history.db")
    with files_of_at_most(300_000):
        conversation, kept = talk(history, *(f"{n} " + "x" * 50_000 for n in range(10)))
        assert not kept
        assert "New messages are kept in memory only" in said(history)
        assert history.load(conversation.id) == conversation
        assert history.list()[0].messages == 10
    answer = conversation.add(ASSISTANT, "after")
    assert history.put(conversation, [answer])
    assert said(history) == KEPT_AGAIN
    history.close()
    holds(history.path, conversation)


# Read-only


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that a user without rights can get to, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.parametrize("folder_too", [False, True])
@pytest.mark.parametrize("tidy", [False, True])
def test_read_only(open_to_all: Path, folder_too: bool, tidy: bool) -> None:
    path = open_to_all / "history.db"
    first = opened(path)
    before, _ = talk(first, "before")
    if tidy:
        first.close()
    for file in open_to_all.iterdir():
        file.chmod(0o444)
    open_to_all.chmod(0o555 if folder_too else 0o777)
    try:
        with as_nobody():
            history = opened(path)
            assert history.trouble is not None
            assert history.trouble.kind == "read-only"
            assert "kept in memory only, and in a file of their own at the end" in said(history)
            assert history.load(before.id) == before
            during, kept = talk(history, "during")
            assert not kept
            assert [each.title for each in history.list()] == ["during", "before"]
            with pytest.raises(HistoryError, match="cannot be written"):
                history.delete([before.id])
            assert history.delete([during.id]) == 1
            assert history.take_notices() == []  # reading well is no news
            during, _ = talk(history, "again")
        # Somebody puts it right.
        open_to_all.chmod(0o777)
        for file in open_to_all.iterdir():
            file.chmod(0o666)
        assert history.drain()
        assert said(history) == KEPT_AGAIN
        history.close()
    finally:
        open_to_all.chmod(0o755)
    first.close()
    holds(path, before, during)


@pytest.mark.parametrize("version", [0, 1])
def test_read_only_and_empty_or_older(open_to_all: Path, version: int) -> None:
    path = open_to_all / "history.db"
    for migration in MIGRATIONS[:version]:
        for statement in migration:
            rows(path, statement)
    rows(path, f"PRAGMA application_id = {APPLICATION if version else 0}")
    rows(path, f"PRAGMA user_version = {version}")
    path.chmod(0o444)
    open_to_all.chmod(0o555)
    try:
        with as_nobody():
            history = opened(path)
            conversation, kept = talk(history, "during")
            assert not kept
            assert history.load(conversation.id) == conversation
    finally:
        open_to_all.chmod(0o777)
    path.chmod(0o666)
    assert history.drain()
    history.close()
    holds(path, conversation)


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder.db").mkdir()
    for path in (tmp_path / "file" / "history.db", tmp_path / "folder.db", Path("/proc/x/h.db")):
        history = opened(path)
        assert history.trouble is not None
        assert str(path) in said(history)
        conversation, kept = talk(history, "one")
        assert not kept
        assert history.load(conversation.id) == conversation
        assert history.list()[0].title == "one"
        history.close()


# Another version's, or another program's


@pytest.mark.parametrize("foreign", [False, True])
def test_what_is_not_ours_is_not_touched(tmp_path: Path, foreign: bool) -> None:
    path = tmp_path / "history.db"
    if foreign:
        rows(path, "CREATE TABLE things (x)")
    else:
        opened(path).close()
        rows(path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    before = path.read_bytes()
    history = opened(path)
    assert history.trouble is not None
    assert history.trouble.kind == ("foreign" if foreign else "newer")
    assert "is not changed" in said(history)
    conversation, kept = talk(history, "one")
    assert not kept
    assert history.load(conversation.id) == conversation
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
def test_a_disk_that_is_full_or_fails(error: Exception, told: str, tmp_path: Path) -> None:
    text = trouble(error, tmp_path / "history.db").text
    assert told in text
    assert str(tmp_path / "history.db") in text
    assert "kept in memory only" in text
