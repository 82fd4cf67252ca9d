"""Damaged files: set aside, salvaged and replaced."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from localspec.errors import HistoryError
from tests.history.histories import asides, damage, fill, opened, rows, said, talk

HOW = [
    *("header", "text", "cut", "middle", "schema", "index", "everywhere"),
    pytest.param("undecodable", marks=pytest.mark.nightly),
]


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
    if how in ("middle", "index", "everywhere"):
        assert len(saved) > 20, "what could be read should have been saved"
        loaded = history.load(saved.popitem()[1].id)
        assert loaded.path()
    history.close()
    other = opened(path)
    assert said(other) == ""
    assert other.count() == len(found)
    other.close()
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


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
