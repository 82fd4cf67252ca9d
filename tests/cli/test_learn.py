"""`localspec learn`: what is taken, what is left out, and what is said about it."""

import errno
import fcntl
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.history.histories import conversation_of, store
from tests.support.patches import fail_with

pytestmark = pytest.mark.usefixtures("here")


def learned_texts(cli: Cli) -> dict[str, int]:
    stores = cli("learn", "--list", "--json").json["datastores"]
    return {name: each["texts"] for store in stores for name, each in store["learned"].items()}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def test_files_that_are_not_text_are_counted(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localspec.retrieval.texts.MOST_BYTES", 100)
    files = {"a.txt": b"some text", "b.bin": b"\0\1", "c.txt": b"\xff\xfe", "d.txt": b"d" * 101}
    # Invalid lines are skipped, as by git; so are those that would take pathspec for ever.
    lines = b".gitignore\n!\n[z-a]\n[[:alpha:]]\n*.log\n%bx\n%bb" % (b"*" * 40, b"*a" * 9)
    write_files(here.parent, {".git/HEAD": b"", ".gitignore": b"*"})  # another work tree
    files |= {".git/HEAD": b"", ".gitignore": lines, "in/e.txt": b"more text"}
    write_files(here, files | {f"in/{'a' * 60}.log": b"of a program"})
    (here / "link.txt").symlink_to(here / "a.txt")
    told = cli("learn", ".", "-m", "demo").err
    assert "Files left out: 2 that are not UTF-8 text, 1 of more than" in told
    assert "Learned 5 tokens of 2 texts in" in told
    assert "vocabulary of demo now" in told
    assert "of 1 text in" in cli("learn", "in", "-m", "demo").err


def test_list_replace_and_forget(cli: Cli, here: Path) -> None:
    write_files(here, {"one/a.txt": b"once upon a time", "two.txt": b"there was a fox"})
    assert cli("learn", "one", "two.txt").code == cli("learn", "one").code == 0
    assert learned_texts(cli) == {str(here / "one"): 1, str(here / "two.txt"): 1}
    assert str(here / "two.txt") in cli("learn", "--list").out
    assert cli("learn", "--forget", "two.txt").code == 0
    assert learned_texts(cli) == {str(here / "one"): 1}
    cli("learn", "--forget", "two.txt").refused("learn --list")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_locks(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", fail_with(OSError(number, "no locks")))
    write_files(here, {"a.txt": b"once upon a time"})
    for _ in range(2):
        assert cli("learn", "a.txt").code == 0
    assert learned_texts(cli) == {str(here / "a.txt"): 1}


def test_learn_and_forget_the_history(cli: Cli) -> None:
    store(conversation_of("Why?", "Because.") for _ in range(2))
    assert cli("learn", "--history").code == 0
    assert learned_texts(cli) == {"history": 4}
    assert cli("history", "rm", "1", "--yes").code == 0
    assert learned_texts(cli) == {"history": 2}, "what is removed there is forgotten here"
    assert cli("learn", "--forget", "history").code == 0
    assert learned_texts(cli) == {}


@pytest.mark.parametrize("package", ["pydivsufsort", "pathspec", "filelock"])
def test_missing_package_is_named(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    write_files(here, {"a.txt": b"text"})
    monkeypatch.setitem(sys.modules, package, None)
    cli("learn", ".").refused(f"the package {package}", "pip install '.[learn]'")
