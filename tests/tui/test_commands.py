"""Parsing and completion of slash commands."""

from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.tui.session.commands import BY_NAME, complete, parse


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/HELP", "help", ""),
        ("/bye", "quit", ""),
        ("/model a b", "model", "a b"),
        ("/set  temperature 0.5 ", "set", "temperature 0.5"),
        ("/system Be brief.\nAnd kind.", "system", "Be brief.\nAnd kind."),
    ],
)
def test_parse_command(line: str, name: str, argument: str) -> None:
    assert parse(line) == (BY_NAME[name], argument)


@pytest.mark.parametrize(
    "line", ["hello", "", " /help", "//help", "/usr/bin/env", "/usr/bin/env python", "/a\nb"]
)
def test_text_is_no_command(line: str) -> None:
    assert parse(line) is None


@pytest.mark.parametrize("line", ["/nothing", "/", "/ help", "/hel"])
def test_unknown_command(line: str) -> None:
    with pytest.raises(UsageError, match="There is no command /"):
        parse(line)


def texts(line: str) -> list[str]:
    return [completion.text for completion in complete(line, {})]


def test_values_are_completed() -> None:
    assert texts("/SE") == ["/set ", "/search "]
    assert texts("/zzz") == []
    assert texts("/tokens o") == ["/tokens on", "/tokens off"]
    assert texts("/tokens on") == []
    assert texts("/set pena")[1:] == [
        *("/set frequency_penalty", "/set presence_penalty", "/set penalty_last_n")
    ]
    assert texts("/set top_k 4") == []


def test_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("notes.txt", "novel.txt", ".hidden", "with space.txt"):
        (tmp_path / name).touch()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "deep.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert texts("/attach ") == [
        "/attach more/",
        "/attach notes.txt",
        "/attach novel.txt",
        "/attach with space.txt",
    ]
    assert texts("/attach no") == ["/attach notes.txt", "/attach novel.txt"]
    assert texts("/attach .h") == ["/attach .hidden"]
    assert texts("/attach with sp") == ["/attach with space.txt"]
    assert texts("/attach more/") == ["/attach more/deep.txt"]
    assert texts("/attach ~/mo") == ["/attach ~/more/"]
    assert texts(f"/attach {tmp_path}/nov") == [f"/attach {tmp_path}/novel.txt"]
    assert texts("/attach none/x") == []


@pytest.mark.parametrize("begun", ["~nobody/x", "\0", "a" * 5000])
def test_impossible_paths(begun: str) -> None:
    assert texts(f"/attach {begun}") == []
