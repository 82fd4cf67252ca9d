"""What can be wrong with the file: the chat goes on, the user is told, and nothing is lost that
could be kept."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from localspec.chat import schema
from localspec.chat.conversation import ASSISTANT, STREAMING, USER, Conversation
from localspec.chat.history import History
from localspec.chat.records import Header
from localspec.chat.schema import MIGRATIONS, file_system
from localspec.chat.trouble import KEPT_AGAIN, READ_AGAIN, kind_of
from localspec.errors import HistoryError
from tests.chat.histories import conversation_of, fill, rows

PATIENCE = 0.05
"""Seconds; long enough for what is not locked at all."""


def opened(path: Path, *, repair: bool = True) -> History:
    """A history that does not wait, and tries again each time."""
    return History(path, repair=repair, patience=PATIENCE, retry=0.0)


def said(history: History) -> str:
    return "\n".join(history.take_notices())


def talk(history: History, *texts: str) -> tuple[Conversation, bool]:
    """A conversation written, and whether all of it was kept."""
    conversation = conversation_of(*texts)
    kept = history.save(conversation)
    for message in conversation.path():
        kept = history.write(message, conversation.id) and kept
    return conversation, kept


def holds(path: Path, *conversations: Conversation) -> None:
    """Whether somebody who opens the file finds them all."""
    history = opened(path)
    try:
        for conversation in conversations:
            assert history.load(conversation.id) == conversation
        assert history.count() == len(conversations)
    finally:
        history.close()


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who may write whatever is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def locked(path: Path, begin: str = "BEGIN EXCLUSIVE") -> Iterator[None]:
    """Another connection that keeps it to itself."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(begin)
        other.execute("CREATE TABLE IF NOT EXISTS other (x)")
        yield
        other.execute("ROLLBACK" if other.in_transaction else "SELECT 1")


# Missing


def test_missing_folders_are_made(tmp_path: Path) -> None:
    history = opened(tmp_path / "a" / "b" / "history.db")
    conversation, kept = talk(history, "one", "two")
    assert kept
    assert (history.trouble, history.take_notices(), history.behind) == (None, [], False)
    history.close()
    holds(history.path, conversation)


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


def test_a_conversation_that_another_program_removed_is_written_whole(tmp_path: Path) -> None:
    history, other = opened(tmp_path / "history.db"), opened(tmp_path / "history.db")
    conversation, _ = talk(history, "one", "two")
    assert other.delete([conversation.id]) == 1
    message = conversation.add(USER, "three")
    everything = list(conversation.messages.values())
    header = Header.of(conversation)
    assert history.put(conversation.id, header=header, messages=[message], everything=everything)
    assert other.load(conversation.id) == conversation
    history.close()
    other.close()


# Locked


def test_locked_while_writing(tmp_path: Path) -> None:
    history = opened(tmp_path / "history.db")
    before, _ = talk(history, "before")
    with locked(history.path):
        during, kept = talk(history, "during", "the walrus")
        assert not kept
        assert history.behind
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
    assert history.catch_up()
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
        assert not history.write(answer, conversation.id)  # before the header is known
        assert history.list()[0].messages == 3
        assert history.list()[0].title == "one"
        assert not history.save(conversation)
        assert history.list()[0].title == "renamed"
        answer.content += "ee"
        assert not history.write(answer, conversation.id)
        assert history.load(conversation.id) == conversation
    answer.content += " and more"
    assert history.write(answer, conversation.id)
    answer.content += ", and more"
    assert history.write(answer, conversation.id)
    assert history.load(conversation.id) == conversation
    answer.state = "complete"
    assert history.write(answer, conversation.id)
    history.close()
    holds(history.path, conversation)


def test_locked_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    first = opened(path)
    before, _ = talk(first, "before")
    first.close()
    with locked(path):
        history = opened(path)
        # Somebody only writes: reading is not hindered.
        assert history.load(before.id) == before
        during, kept = talk(history, "during")
        assert not kept
    assert history.catch_up()
    history.close()
    holds(path, before, during)


def test_locked_against_reading_too(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    first = opened(path)
    before, _ = talk(first, "before")
    first.close()
    rows(path, "PRAGMA journal_mode = delete")
    with locked(path):
        history = opened(path)
        assert history.list() == []
        assert "locked" in said(history)
        with pytest.raises(HistoryError, match="locked"):
            history.load(before.id)
        during, kept = talk(history, "during")
        assert not kept
        assert history.load(during.id) == during
        with pytest.raises(HistoryError, match="locked"):
            history.delete([before.id])
    assert history.catch_up()
    assert KEPT_AGAIN in said(history)
    assert history.load(before.id) == before
    history.close()
    holds(path, before, during)


def test_locked_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "_on_network", lambda path: True)  # no WAL
    history = opened(tmp_path / "history.db")
    before, _ = talk(history, "before")
    with locked(history.path):
        assert history.list() == []
        assert history.search("before") == []
        assert said(history).count("cannot be read") == 1
        with pytest.raises(HistoryError, match="cannot be read"):
            history.load(before.id)
    assert history.load(before.id) == before
    assert said(history) == READ_AGAIN
    assert history.trouble is None
    history.close()


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db", patience=PATIENCE, retry=1e9)
    with locked(history.path):
        conversation, kept = talk(history, "one", "two")
        assert not kept
    assert not history.catch_up()  # it is not time yet
    history.close()
    holds(history.path, conversation)


def test_what_cannot_be_kept_at_the_end_is_said(tmp_path: Path) -> None:
    history = opened(tmp_path / "history.db")
    with locked(history.path):
        talk(history, "one")
        said(history)
        history.close()
    assert "Not everything could be kept" in said(history)


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
            assert "is in memory only and is gone when localspec ends" in said(history)
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
        assert history.catch_up()
        assert said(history) == KEPT_AGAIN
        history.close()
    finally:
        open_to_all.chmod(0o755)
    first.close()
    holds(path, before, during)


def test_a_folder_that_cannot_be_written(open_to_all: Path) -> None:
    open_to_all.chmod(0o555)
    try:
        with as_nobody():
            history = opened(open_to_all / "data" / "history.db")
            assert history.trouble is not None
            assert history.trouble.kind == "read-only"
            conversation, kept = talk(history, "one")
            assert not kept
            assert history.load(conversation.id) == conversation
            history.close()
    finally:
        open_to_all.chmod(0o755)


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
    assert "stays as it is" in said(history)
    conversation, kept = talk(history, "one")
    assert not kept
    assert history.load(conversation.id) == conversation
    history.close()
    assert path.read_bytes() == before


# No room


def test_disk_full(tmp_path: Path) -> None:
    history = opened(tmp_path / "history.db")
    before, _ = talk(history, "before")
    writer = history._keeper._disk.writer  # type: ignore[union-attr]
    assert writer is not None
    (pages,) = writer.connection.execute("PRAGMA page_count").fetchone()
    writer.connection.execute(f"PRAGMA max_page_count = {pages}")
    during, kept = talk(history, "during " * 5000, "answer " * 5000)
    assert not kept
    assert history.trouble is not None
    assert history.trouble.kind == "full"
    assert said(history).count("The disk is full") == 1
    assert history.load(during.id) == during
    assert history.load(before.id) == before
    assert history.list()[0].messages == 2
    assert not history.catch_up()
    writer.connection.execute("PRAGMA max_page_count = 1000000")
    later, kept = talk(history, "later")
    assert kept
    assert said(history) == KEPT_AGAIN
    history.close()
    holds(history.path, before, during, later)


# Damage


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    dice = random.Random(5)
    if how == "header":
        data[:100] = dice.randbytes(100)
    elif how == "text":
        data[:] = b"This is no database.\n" * 100
    elif how == "cut":
        del data[len(data) // 2 :]
    elif how == "middle":
        start = len(data) // 3
        data[start : start + 8 * 4096] = dice.randbytes(8 * 4096)
    elif how == "schema":
        data[100:4096] = dice.randbytes(3996)
    elif how == "everywhere":
        for page in range(30, len(data) // 4096, 7):  # the tables' roots are before these
            data[4096 * page : 4096 * page + 20] = dice.randbytes(20)
    path.write_bytes(data)


def asides(folder: Path) -> list[Path]:
    """Files that were set aside, but for those that belong to them."""
    found = (file for file in folder.iterdir() if ".corrupt-" in file.name)
    return [file for file in found if not file.name.endswith(("-wal", "-shm"))]


HOW = ["header", "text", "cut", "middle", "schema", "everywhere"]


@pytest.mark.parametrize("how", HOW)
def test_damaged(tmp_path: Path, how: str) -> None:
    path = tmp_path / "history.db"
    fill(path, 200)
    damage(path, how)
    broken = path.read_bytes()
    history = opened(path)
    # Whatever is asked, it is found at the latest when it is read.
    for each in history.list(limit=1000):
        history.load(each.id)
    history.search("common")
    conversation, kept = talk(history, "after")
    assert kept
    assert history.trouble is None
    notice = said(history)
    assert "was damaged" in notice
    (aside,) = asides(tmp_path)
    assert str(aside) in notice
    assert aside.name.startswith("history.db.corrupt-")
    assert aside.read_bytes() == broken
    found = history.list(limit=1000)
    assert history.search("after")[0].conversation == conversation.id
    saved = {each.title: each for each in found}
    if how in ("middle", "everywhere"):
        assert len(saved) > 20, "what could be read should have been saved"
        loaded = history.load(saved.popitem()[1].id)
        assert loaded.path()
    history.close()
    other = opened(path)
    assert said(other) == ""
    assert other.count() == len(found)
    other.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_only_the_index_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    fill(path, 50)
    rows(path, "UPDATE words_data SET block = x'ffffffffffffff' WHERE id > 1000")
    history = opened(path)
    assert len(history.search("common", limit=1000)) == 150
    assert history.count() == 50
    assert history.take_notices() == []
    assert asides(tmp_path) == []
    history.close()


def test_damaged_text_is_shown_as_far_as_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    fill(path, 3)
    rows(path, "UPDATE messages SET content = CAST(x'61ff62' AS TEXT), stats = '{', spans = '[1]'")
    rows(path, "UPDATE conversations SET sampling = '[]', created = 'x'")
    history = opened(path)
    conversation = history.load(history.find("1"))
    assert {message.content for message in conversation.path()} == {"a\ufffdb"}
    assert {str(m.stats) + str(m.spans) for m in conversation.path()} == {"NoneNone"}
    assert (conversation.sampling, history.trouble) == ({}, None)
    history.close()


def test_an_emptied_file_with_changes_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    first = opened(path)
    talk(first, "before")
    changes = Path(f"{path}-wal").read_bytes()
    assert changes
    copy = tmp_path / "copy" / "history.db"
    copy.parent.mkdir()
    copy.touch()
    Path(f"{copy}-wal").write_bytes(changes)
    history = opened(copy)
    assert "was damaged" in said(history)
    assert talk(history, "after")[1]
    history.close()
    first.close()
    # SQLite would have thrown that away.
    (kept,) = (file for file in copy.parent.iterdir() if file.name.endswith("-wal"))
    assert kept.read_bytes() == changes


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.touch()
    history = opened(path)
    conversation, kept = talk(history, "one")
    assert kept
    assert history.take_notices() == []
    history.close()
    holds(path, conversation)


def test_changes_that_were_not_finished_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    first = opened(path)
    conversation, _ = talk(first, "one", "two")
    wal = Path(f"{path}-wal")
    copy = tmp_path / "copy" / "history.db"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    Path(f"{copy}-wal").write_bytes(wal.read_bytes() + b"half a page of the next change")
    first.close()
    holds(copy, conversation)


@pytest.mark.parametrize("how", ["header", "middle"])
def test_who_only_looks_does_not_move_files(tmp_path: Path, how: str) -> None:
    path = tmp_path / "history.db"
    fill(path, 200)
    damage(path, how)
    before = path.read_bytes()
    history = opened(path, repair=False)
    for each in history.list(limit=1000):
        with suppress(HistoryError):
            history.load(each.id)
    assert "damaged" in said(history)
    assert history.trouble is not None
    assert history.trouble.kind == "corrupt"
    history.close()
    assert asides(tmp_path) == []
    assert path.read_bytes() == before


def test_a_repair_that_another_process_began_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"no database " * 1000)
    mark = Path(f"{path}.repair")
    from localspec.chat.writer import me

    mark.write_text(me())
    history = opened(path)
    assert history.trouble is not None
    assert history.trouble.kind == "corrupt"
    mark.write_text("1@0.0")  # whoever that was is gone
    assert talk(history, "one")[1]
    assert not mark.exists()
    history.close()


def test_two_that_find_the_damage_repair_it_once(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    fill(path, 200)
    histories = [opened(path), opened(path)]
    damage(path, "middle")
    for number, history in enumerate(histories):
        for each in history.list(limit=1000):
            history.load(each.id)
        assert talk(history, f"after {number}")[1]
    assert len(asides(tmp_path)) == 1
    titles = [{each.title for each in history.list(limit=1000)} for history in histories]
    assert titles[0] == titles[1] >= {"after 0", "after 1"}
    for history in histories:
        history.close()


# Where there is no WAL


def test_without_shared_memory_there_is_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.chat import disk

    def dotfile(path: Path, **options: object) -> sqlite3.Connection:
        return schema.connect(path, **options, vfs="unix-dotfile")  # type: ignore[arg-type]

    monkeypatch.setattr(disk, "connect", dotfile)
    history = opened(tmp_path / "history.db")
    conversation, kept = talk(history, "one", "two")
    assert kept
    assert history.load(conversation.id) == conversation
    assert not Path(f"{history.path}-wal").exists()
    history.close()
    holds(history.path, conversation)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/history.db", "ext4"),
        ("/home/me/net/history.db", "nfs4"),
        ("/home/me/network/history.db", "ext4"),
        ("/mnt/c/history.db", "9p"),
        ("/history.db", "ext4"),
    ],
)
def test_file_systems(path: str, kind: str) -> None:
    mounts = [("/", "ext4"), ("/home/me/net", "NFS4"), ("/mnt/c/", "9p"), ("/proc", "proc")]
    assert file_system(Path(path), mounts) == kind


def test_on_a_network_there_is_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.db"
    fill(path, 1)
    monkeypatch.setattr(schema, "_on_network", lambda path: True)
    history = opened(path)
    assert rows(path, "PRAGMA journal_mode") == [("delete",)]
    assert talk(history, "one")[1]
    history.close()


# What errors mean


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "full"),
        (OSError(errno.EROFS, "Read-only file system"), "read-only"),
        (PermissionError(errno.EACCES, "Permission denied"), "read-only"),
        (OSError(errno.EIO, "Input/output error"), "failing"),
        (sqlite3.OperationalError("database is locked"), "locked"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "read-only"),
        (sqlite3.OperationalError("database or disk is full"), "full"),
        (sqlite3.OperationalError("disk I/O error"), "failing"),
        (sqlite3.DatabaseError("database disk image is malformed"), "corrupt"),
        (sqlite3.DatabaseError("file is not a database"), "corrupt"),
    ],
)
def test_kinds(error: Exception, kind: str, tmp_path: Path) -> None:
    assert kind_of(error, tmp_path / "history.db") == kind


def test_every_sentence_says_what_to_do(tmp_path: Path) -> None:
    from localspec.chat import trouble

    for sentences in (trouble._SENTENCES, trouble._UNREADABLE):
        for text in sentences.values():
            shown = text.format(path="P", why="W")
            assert shown.endswith(".")
            assert "P" in shown
            assert shown.count(". ") >= 1
