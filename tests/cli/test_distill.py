"""`localspec distill`: what is recorded, forgotten and refused."""

import os
import sys
from pathlib import Path

import pytest

from localspec.decoding.logprobs import TokenLogprob
from localspec.distill import chats, folders
from localspec.distill.trace import TraceHeader
from tests.cli.conftest import Cli
from tests.history.histories import conversation_of, store

pytestmark = pytest.mark.nightly

PROMPTS = "Tell me a story about a fox.\nTell me a story about a house.\nTell me about the sun.\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(os, "nice", lambda _: 0)  # this process runs other tests afterwards
    (tmp_path / "prompts.txt").write_text(PROMPTS)
    return tmp_path / "home"


def recorded(cli: Cli, tmp_path: Path, *more: str) -> dict[str, int]:
    asked = ("distill", str(tmp_path / "prompts.txt"), "--record-only", "-n", "8", "--json")
    result = cli(*asked, *more)
    assert result.code == 0, result.err
    return result.json  # type: ignore[no-any-return]


def test_recorded_shown_and_forgotten(cli: Cli, home: Path, tmp_path: Path) -> None:
    assert "Nothing was recorded" in cli("distill", "--list").err
    first = recorded(cli, tmp_path)
    assert first["answers"] == 3
    assert recorded(cli, tmp_path) == first  # nothing is asked twice
    assert recorded(cli, tmp_path, "--answers", "2")["answers"] == 6
    (shown,) = cli("distill", "--list", "--json").json["recorded"]
    assert (shown["answers"], shown["target"]) == (6, "tale-13m-q8_0.gguf")
    folder = Path(shown["folder"])
    assert folder.is_relative_to(home)
    for private in (folder, folder / "trace"):
        assert private.stat().st_mode & 0o077 == 0
    assert shown["bytes"] == sum(p.stat().st_size for p in folder.rglob("*"))
    listed = cli("distill", "--list").out
    assert all(shown[fact] in listed for fact in ("name", "folder"))
    cli("distill", "--forget", shown["name"], "--forget", "other").refused(
        "recorded under the name 'other'. 'localspec distill --list' shows the names."
    )
    assert cli("distill", "--forget", shown["name"]).code == 0
    assert not folder.exists()
    assert cli("distill", "--list", "--json").json == {"recorded": []}
    asked = ("distill", str(tmp_path / "prompts.txt"), "--record-only", "--tokens", f"{10**12}")
    cli(*asked).refused("Recording takes about 132.0 TB", code=1)


def test_without_pytorch(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    cli("distill", str(tmp_path / "prompts.txt")).refused(
        "Drafts are trained with the package torch, which is not installed. Install it with: "
        "pip install '.[train]' in the clone of localspec"
    )
    assert cli("distill", "--list", "--json").json == {"recorded": []}  # it was said before


def test_a_target_without_a_chat_template(cli: Cli, plain_model: Path, tmp_path: Path) -> None:
    asked = ("distill", "-m", str(plain_model), str(tmp_path / "prompts.txt"), "--record-only")
    cli(*asked).refused("has no chat template", "--raw")
    assert cli(*asked, "--raw", "-n", "4", "-q").code == 0


def test_a_folder_that_cannot_be_made(cli: Cli, home: Path, tmp_path: Path) -> None:
    home.write_text("a file in the way")
    for command in (["distill", "--record-only"], ["learn"], ["run", "-d", "self:2"]):
        found = cli(*command, str(tmp_path / "prompts.txt"))
        found.refused("set LOCALSPEC_HOME to another folder", code=1)


def test_the_history_is_asked_again(cli: Cli) -> None:
    store([conversation_of("Tell me about a fox.", "There was a fox.", "And then?")])
    result = cli("distill", "--history", "--record-only", "-n", "4", "--json")
    assert result.json["answers"] == 2


def test_what_was_recorded_while_chatting_goes_by_one_name_or_with_its_conversation(
    cli: Cli,
) -> None:
    header = TraceHeader("toy.gguf", "0" * 16, "f" * 24, 97, 1)
    folder = folders.folder_of(Path("toy.gguf"), header.identity)
    conversation = conversation_of("Tell me about a fox.")
    store([conversation])
    told = [TokenLogprob(5, -0.1, ((5, -0.1),))]
    for number, id in enumerate((conversation.id, "b", "c")):
        chats.record_answer(folder, header, id, (1, number), told)

    def counts() -> tuple[int, int]:
        (shown,) = cli("distill", "--list", "--json").json["recorded"]
        return shown["answers"], shown["from_chats"]

    assert counts() == (3, 3)
    assert "FROM CHATS" in cli("distill", "--list").out
    assert cli("history", "rm", "--yes", conversation.id).code == 0
    assert counts() == (2, 2)
    gone = cli("distill", "--forget", "history")
    assert (gone.code, "recorded in chats: 2." in gone.err) == (0, True)
    assert counts() == (0, 0)
