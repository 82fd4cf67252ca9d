"""`localspec learn`: what is taken, what is left out, and what is said about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from localspec.cli.main import main
from tests.history.histories import conversation_of, store
from tests.support import homes


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return homes.move_to(tmp_path, monkeypatch)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    capsys.readouterr()
    assert main(["learn", "--list", "--json"]) == 0
    stores = json.loads(capsys.readouterr().out)["datastores"]
    return {name: each["texts"] for store in stores for name, each in store["learned"].items()}


def make(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_what_is_no_text_is_left_out_and_counted(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.retrieval.texts.MOST_BYTES", 100)
    make(here, {"a.txt": "some text", "b.bin": b"\0\1", "c.txt": b"\xff\xfe", "d.txt": "d" * 101})
    (here / "link.txt").symlink_to(here / "a.txt")
    assert main(["learn", "."]) == 0
    told = said(capsys)
    assert "Files left out: 2 that are no UTF-8 text, 1 of more than" in told
    assert "Learned 1 texts" in told
    assert "tale-13m" in told


def test_it_is_listed_replaced_and_forgotten(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(here, {"one/a.txt": "once upon a time", "two.txt": "there was a fox"})
    assert main(["learn", "one", "two.txt"]) == 0
    assert main(["learn", "one"]) == 0
    assert listed(capsys) == {str(here / "one"): 1, str(here / "two.txt"): 1}
    assert main(["learn", "--list"]) == 0
    assert str(here / "two.txt") in capsys.readouterr().out
    assert main(["learn", "--forget", "two.txt"]) == 0
    assert listed(capsys) == {str(here / "one"): 1}
    assert main(["learn", "--forget", "two.txt"]) == 2
    assert "learn --list" in said(capsys)


def test_the_history_is_learned_and_forgotten_as_a_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["learn", "--history"]) == 2
    assert "no history yet" in said(capsys)
    store(conversation_of("Why?", "Because.") for _ in range(2))
    assert main(["learn", "--history"]) == 0
    assert listed(capsys) == {"history": 4}
    assert main(["history", "rm", "1", "--yes"]) == 0
    assert listed(capsys) == {"history": 2}, "what is removed there is forgotten here"
    assert main(["learn", "--forget", "history"]) == 0
    assert listed(capsys) == {}


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "Give one of: PATH"),
        (["--list", "x"], 2, "Give one of"),
        (["missing"], 2, "no file or folder missing. Check the path"),
        (["empty"], 2, "no text in it"),
        (["--forget", "x"], 2, "learn --list"),
        (["a.txt", "-m", "nowhere.gguf"], 3, "nowhere.gguf"),
    ],
)
def test_what_is_wrong_is_said(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, sentence: str
) -> None:
    (here / "empty").mkdir()
    make(here, {"a.txt": "text"})
    assert main(["learn", *arguments]) == code
    told = said(capsys)
    assert sentence in told
    assert "Traceback" not in told


@pytest.mark.parametrize("package", ["pydivsufsort", "pathspec", "filelock"])
def test_a_missing_package_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    make(here, {"a.txt": "text"})
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["learn", "."]) == 2
    told = said(capsys)
    assert f"the package {package}" in told
    assert "pip install '.[learn]'" in told
