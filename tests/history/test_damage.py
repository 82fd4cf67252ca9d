"""Damaged files: kept aside, read as far as they can be, and replaced."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from localspec.errors import HistoryError
from tests.history.histories import asides, damage, fill, holds, opened, rows, said, talk

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
    assert "with the 200 messages that could be read" in said(history)
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
    with closing(sqlite3.connect(f"{path}.repair", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        history = opened(path)
        assert history.trouble is not None
        assert history.trouble.kind == "locked"
        assert asides(tmp_path) == []
    assert talk(history, "one")[1]  # whoever that was is gone
    assert len(asides(tmp_path)) == 1
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
