"""`localspec history` and `localspec doctor --paths`."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec import paths
from localspec.chat.conversation import ASSISTANT, Conversation
from localspec.distill import folders
from localspec.history.export import to_json, to_markdown
from localspec.history.history import History
from localspec.retrieval import manifest as manifests
from tests.cli.conftest import Cli
from tests.history.histories import PATIENCE, conversation_of, damage, locked, rows, store
from tests.tui.terminals import LOCALSPEC, Terminal

FOX, WALRUS, STEERING = ("1" * 32, "2" * 32, "2b" + "3" * 30)

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def conversations() -> list[Conversation]:
    """Three conversations, the newest first."""
    made = [
        conversation_of("a\x1b[2J\x07 title\nmore\x1b]0;x\x07\u202e", id=STEERING, created=3e8),
        conversation_of("Of the walrus", "And the carpenter", id=WALRUS, created=2e8),
        conversation_of("Tell me of the fox.", "Once upon a time.", id=FOX, created=1e8),
    ]
    made[2].model = "tale\x1b[1m"
    made[0].title = "a\x1b[2J\x07 title\u202e\nmore"  # as a model may make it
    store(made)
    return made


def remaining_ids() -> set[str]:
    return {id for (id,) in rows(paths.history_file(), "SELECT id FROM conversations")}


def test_empty_history(cli: Cli, home: Path) -> None:
    result = cli("history", "list")
    assert (result.code, result.out) == (0, "")
    assert "no conversations yet" in result.sentence()
    assert cli("history", "list", "--json").json == {"total": 0, "conversations": []}
    assert cli("history", "search", "fox", "--json").json == {"query": "fox", "hits": []}
    for arguments in (("show", "1"), ("export", "1"), ("rm", "1", "--yes")):
        cli("history", *arguments).refused("the history is empty")
    assert list(home.iterdir()) == []  # looking makes no files
    paths.data_folder().mkdir()
    paths.history_file().symlink_to("gone")
    cli("history", "list").refused(str(paths.history_file()), "cannot be used: No such", code=1)


def test_list_as_json(cli: Cli, conversations: list[Conversation]) -> None:
    found = cli("history", "list", "--limit", "2", "--json").json
    assert found["total"] == 3
    walrus = {"id": WALRUS, "title": "Of the walrus", "updated": 2e8, "messages": 2, "model": None}
    assert found["conversations"][1] == walrus
    assert [each["id"] for each in found["conversations"]] == [STEERING, WALRUS]


@pytest.mark.nightly
def test_list_on_a_terminal(home: Path, conversations: list[Conversation]) -> None:
    command = (*LOCALSPEC, "history", "list")
    screen = Terminal(command, home=home, columns=52).printed()
    heading, _, *lines = screen.splitlines()
    assert heading.split() == ["#", "ID", "UPDATED", "TITLE"]
    assert max(len(line) for line in lines) <= 52
    assert lines[1].split()[:2] == ["2", "22222222"]
    assert lines[2].endswith("Tell me of the …")
    wide = Terminal(command, home=home, columns=90).printed()
    assert wide.splitlines()[0].split()[-2:] == ["MODEL", "TITLE"]
    assert wide.splitlines()[4].endswith("2   tale [1m   Tell me of the fox.")
    assert "\x1b" not in screen
    assert "\u202e" not in screen


def test_search(cli: Cli, conversations: list[Conversation]) -> None:
    (line,) = cli("history", "search", '"of the" w').out.splitlines()[2:]
    assert line.split()[0] == WALRUS[:8]  # the title repeats the message
    assert line.split()[3] == "user"
    assert line.endswith("  Of the walrus")
    found = cli("history", "search", "carp", "--json").json["hits"]
    assert [(each["conversation"], each["role"]) for each in found] == [(WALRUS, ASSISTANT)]
    assert found[0]["snippet"] == "And the carpenter"
    title = "Where do all the foxes of this wood sleep"
    store([conversation_of(title, "In a den.")])
    (line,) = cli("history", "search", "den").out.splitlines()[2:]
    assert line.endswith(f"{title}   In a den."), "whole in a pipe"


def test_show(cli: Cli, conversations: list[Conversation]) -> None:
    shown = to_markdown(conversations[2]).replace("\x1b", "\ufffd")
    for id in ("3", " 3 ", "1" * 9, FOX, FOX.upper()):  # there are fewer: the beginning of an id
        assert cli("history", "show", id).out == shown
    assert cli("history", "show", "22", "--json").json == json.loads(to_json(conversations[1]))


@pytest.mark.parametrize("command", ["show", "export"])
def test_unknown_and_ambiguous_ids(
    cli: Cli, conversations: list[Conversation], command: str
) -> None:
    cli("history", command, "9").refused("no conversation '9'")
    for id in ("2b4", "", "0", "5", "xyz", "%", "_bc0", "²", "a\udcff", "9" * 5000):
        cli("history", command, id).refused("no conversation")
    store([conversation_of("x", id="2b4" + "0" * 29, created=0.0)])
    cli("history", command, "2b").refused("may be several conversations: 2b3333333333, 2b40000")


def test_export_to_files(cli: Cli, conversations: list[Conversation], tmp_path: Path) -> None:
    folder = tmp_path / "exports"
    folder.mkdir()
    for name in ("of-the-walrus.md", "of-the-walrus-2.md"):
        assert cli("history", "export", "2", "-o", str(folder)).out == f"{folder / name}\n"
    assert (folder / "of-the-walrus.md").read_text() == to_markdown(conversations[1])
    for printed in ((), ("-o", "-"), ("-o", "/dev/stdout")):  # even where that is a new file
        assert cli("history", "export", "2", *printed).out == to_markdown(conversations[1])
    assert cli("history", "export", "2", "--format", "json").out == to_json(conversations[1])
    written = cli("history", "export", "2", "-o", str(folder / "a.json"), "--json").json
    assert written == {"id": WALRUS, "path": str(folder / "a.json")}
    assert (folder / "a.json").read_text() == to_json(conversations[1])


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("--format", "html"), 2, "no format 'html'"),
        (("--json",), 2, "needs --output"),
        (("-o", "no/such/folder.md"), 1, "There is no folder"),
        (("-o", "new/"), 2, "There is no folder new/. Create it, or name a file."),
        (("-o", "/proc/x.md"), 1, "/proc"),
        (("-o", "/dev/null/x.md"), 1, "/dev/null/x.md cannot be written: Not a directory"),
        (("-o", "x" * 300), 1, "x cannot be written: File name too long"),
        (("-o", "a\0b"), 2, "is not a valid file name"),
        (("-o", "/dev/null"), 2, "/dev/null is a pipe or a device. Name a file."),
    ],
)
def test_invalid_exports(
    cli: Cli, conversations: list[Conversation], arguments: tuple[str, ...], code: int, why: str
) -> None:
    cli("history", "export", "1", *arguments).refused(why, code=code)


def test_rm(cli: Cli, conversations: list[Conversation]) -> None:
    result = cli("history", "rm", "--yes", "1", "3", "1", stdin=b"")
    assert (result.code, result.out) == (0, "")
    assert "Removed 2 conversations." in result.err
    assert remaining_ids() == {WALRUS}
    assert cli("history", "rm", "-y", "1", "--json", stdin=b"").json == {"removed": [WALRUS]}
    assert remaining_ids() == set()


def test_rm_removes_all_or_nothing(cli: Cli, conversations: list[Conversation]) -> None:
    assert cli("history", "rm", "--yes", "1", "nobody").code == 2
    cli("history", "rm", "1", stdin=b"y\n").refused("--yes")
    assert len(remaining_ids()) == 3


@pytest.mark.parametrize("damaged", [True, False])
def test_rm_reports_all_that_remains(
    cli: Cli, conversations: list[Conversation], damaged: bool
) -> None:
    files = folders.root() / "a" / folders.TRACE, manifests.root() / "b" / manifests.FILE
    for file in files:
        if damaged:
            file.parent.mkdir(parents=True)
            file.write_text("damaged")
        else:  # unreadable
            file.parents[1].symlink_to(file.parents[1])
    told = [str(file.parents[0 if damaged else 1]) for file in files]
    if not damaged:
        told.append("cannot be opened: Too many levels of symbolic links. Check")
    cli("history", "rm", "--yes", "1").refused("removed, but not all", *told, code=1)


@pytest.mark.parametrize(
    ("typed", "removed"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)],
)
def test_rm_asks_for_confirmation(
    cli: Cli, conversations: list[Conversation], typed: str, removed: bool
) -> None:
    result = cli("history", "rm", "1", "2", typed=typed)
    asked = "  a [2J title more\n  Of the walrus\nRemove these 2 conversations for good? [y/N] "
    assert asked in result.err
    assert "\x1b" not in result.err
    assert result.code == (0 if removed else 130)
    assert (len(remaining_ids()) == 1) is removed


@pytest.mark.parametrize(
    "arguments", [("list",), ("search", "fox"), ("show", "1"), ("export", "1"), ("rm", "1", "-y")]
)
@pytest.mark.parametrize("how", ["damaged", "newer version", "locked"])
def test_damaged_newer_and_locked_files(
    cli: Cli, conversations: object, monkeypatch: pytest.MonkeyPatch, arguments: Any, how: str
) -> None:
    path = paths.history_file()
    monkeypatch.setattr("localspec.history.history.History", partial(History, patience=PATIENCE))
    if how == "damaged":
        damage(path, "header")
    else:
        is_newer = how == "newer version"
        rows(path, f"PRAGMA {'user_version = 99' if is_newer else 'journal_mode = delete'}")
    before = path.read_bytes()
    with locked(path) if how == "locked" else nullcontext():
        cli("history", *arguments).refused(str(path), how, code=1)
    assert path.read_bytes() == before
    assert not [file.name for file in path.parent.iterdir() if "corrupt" in file.name]


def test_paths(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = cli("doctor", "--paths", "--json").json
    assert found == {
        "config": str(home / "config"),
        "settings": str(paths.config_file()),
        "data": str(home / "data"),
        "history": str(paths.history_file()),
        "cache": str(home / "cache"),
    }
    lines = cli("doctor", "--paths").out.splitlines()
    assert dict(line.split(maxsplit=1) for line in lines) == found
    monkeypatch.delenv("LOCALSPEC_HOME")
    elsewhere = cli("doctor", "--paths", "--json").json
    assert set(elsewhere) == set(found)
    assert not any(str(home) in path for path in elsewhere.values())
    assert list(home.iterdir()) == []
    monkeypatch.setenv("HOME", str(home.parent))  # as programs set it that are no shell
    monkeypatch.setenv("LOCALSPEC_HOME", f"~/{home.name}")
    assert cli("doctor", "--paths").out.splitlines() == lines
