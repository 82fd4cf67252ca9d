"""Parsing and completion of slash commands."""

from pathlib import Path

import pytest

from localspec.errors import UsageError
from localspec.tui.session.commands import BY_NAME, complete, parse


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        *(("/help", "help", ""), ("/HELP", "help", ""), ("/bye", "quit", "")),
        *(("/model a b", "model", "a b"), ("/set  top_k 5 ", "set", "top_k 5")),
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
    for begun, found in {
        "": ["more/", "notes.txt", "novel.txt", "with space.txt"],
        "no": ["notes.txt", "novel.txt"],
        ".h": [".hidden"],
        "with sp": ["with space.txt"],
        "more/": ["more/deep.txt"],
        "~/mo": ["~/more/"],
        f"{tmp_path}/nov": [f"{tmp_path}/novel.txt"],
        **{begun: [] for begun in ("none/x", "~no user/x", "\0", "a" * 5000)},
    }.items():
        assert texts(f"/attach {begun}") == [f"/attach {path}" for path in found], begun
