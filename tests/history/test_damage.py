"""Damaged files: set aside, salvaged and replaced."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from localspec.chat.conversation import INTERRUPTED
from localspec.history.export import to_markdown
from tests.history.histories import (
    damage,
    files_set_aside,
    fill,
    notices,
    open_history,
    rows,
    write_conversation,
)

HOW = [
    *("header", "text", "cut", "middle", "schema", "index", "everywhere"),
    pytest.param("undecodable", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("how", HOW)
def test_damaged_file_is_set_aside_and_salvaged(tmp_path: Path, how: str) -> None:
    path = tmp_path / "history.db"
    fill(path, 200)
    damage(path, how)
    broken = path.read_bytes()
    history = open_history(path)
    # Whatever is asked, it is found at the latest when it is read.
    for each in history.list(limit=1000):
        history.load(each.id)
    history.search("common")
    conversation = write_conversation(history, "after")
    assert history.trouble is None
    notice = notices(history)
    assert "was damaged" in notice
    (aside,) = files_set_aside(tmp_path)
    assert str(aside) in notice
    assert aside.name.startswith("history.db.corrupt-")
    assert aside.read_bytes() == broken
    found = history.list(limit=1000)
    assert history.search("after")[0].conversation == conversation.id
    saved = {each.title: each for each in found}
    if how in ("middle", "index", "everywhere"):
        assert len(saved) > 20, "what could be read should have been saved"
        assert history.load(saved.popitem()[1].id).path()
    history.close()
    with closing(open_history(path)) as other:
        assert (notices(other), other.count()) == ("", len(found))
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_each_damaged_file_is_kept(tmp_path: Path) -> None:
    path, texts = tmp_path / "history.db", {b"one" * 1000, b"two" * 1000}
    for text in texts:  # within a second
        path.write_bytes(text)
        open_history(path).close()
    assert {file.read_bytes() for file in files_set_aside(tmp_path)} == texts


def test_log_of_an_emptied_file_is_kept(tmp_path: Path) -> None:
    path, log = tmp_path / "history.db", tmp_path / "history.db-wal"
    with closing(open_history(path)) as history:
        write_conversation(history, "one")
        written = log.read_bytes()
    path.write_bytes(b"")
    log.write_bytes(written)
    open_history(path).close()
    (aside,) = files_set_aside(tmp_path)
    assert Path(f"{aside}-wal").read_bytes() == written


def test_damaged_text_is_shown_partly(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    fill(path, 3)
    odd = "content = CAST(x'61ff62' AS TEXT), stats = '{', spans = '[1]', state = 'x'"
    rows(path, f"UPDATE messages SET {odd}")
    rows(path, "UPDATE conversations SET sampling = '[]', created = 'x'")
    history = open_history(path)
    conversation = history.load(history.find("1"))
    assert {message.content for message in conversation.path()} == {"a\ufffdb"}
    assert {(m.stats, m.spans, m.state) for m in conversation.path()} == {(None, None, INTERRUPTED)}
    assert (conversation.sampling, history.trouble) == ({}, None)
    history.close()


@pytest.mark.parametrize("time", ["1e300", "-1e300", "9e999", "'x'", "x'ff'", "-1"])
def test_odd_values_are_listed_and_exported(tmp_path: Path, time: str) -> None:
    path = tmp_path / "history.db"
    fill(path, 3)
    rows(path, f"UPDATE conversations SET updated = {time}, created = {time}, title = x'ff61'")
    rows(path, f"UPDATE messages SET created = {time}, content = CAST(content AS BLOB)")
    with closing(open_history(path)) as history:
        assert {(each.title, each.updated) for each in history.list()} == {("\ufffda", 0.0)}
        assert {hit.updated for hit in history.search("common")} == {0.0}
        assert "common words 0" in history.recent_prompts()
        assert "common words" in to_markdown(history.load(history.find("1")))


def test_repair_by_another_process_is_awaited(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"no database " * 1000)
    with closing(sqlite3.connect(f"{path}.repair", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        history = open_history(path)
        assert (history.trouble and history.trouble.kind) == "locked"
        assert files_set_aside(tmp_path) == []
    write_conversation(history, "one")  # whoever that was is gone
    assert len(files_set_aside(tmp_path)) == 1
    history.close()


def test_concurrent_repairs_happen_once(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    fill(path, 200)
    histories = [open_history(path), open_history(path)]
    damage(path, "middle")
    for number, history in enumerate(histories):
        for each in history.list(limit=1000):
            history.load(each.id)
        write_conversation(history, f"after {number}")
    assert len(files_set_aside(tmp_path)) == 1
    titles = [{each.title for each in history.list(limit=1000)} for history in histories]
    assert titles[0] == titles[1] >= {"after 0", "after 1"}
    for history in histories:
        history.close()
