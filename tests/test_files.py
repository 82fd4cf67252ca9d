"""Files that are replaced whole, whatever comes in between; what they are known by, and texts."""

import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest

from localspec.files import read_file, replacing, write_atomically
from localspec.gguf.writer import writing
from localspec.text import gigabytes, harmless, listed, printable


@pytest.mark.parametrize("content", ["", "ü 🦊\r\n\n", b"\x00\xff\r\n"])
def test_written_content_is_read_back(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "new" / "folder" / "a.json"
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    write_atomically(path, "next")
    assert path.read_text() == "next"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemExit, ValueError, OSError])
def test_old_content_stays_until_the_end(tmp_path: Path, error: type[BaseException] | None) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with pytest.raises(error) if error else nullcontext(), replacing(path) as partial:
        partial.write_text("new")
        assert partial.parent == path.parent
        assert str(os.getpid()) in partial.name
        assert path.read_text() == "old"
        if error:
            raise error
    assert path.read_text() == ("old" if error else "new")
    assert list(tmp_path.iterdir()) == [path]


def test_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "own" / "a.json", tmp_path / "b.json"
    link.symlink_to(file)
    for content in ("created", "replaced"):
        write_atomically(link, content)
        assert (link.readlink(), file.read_text()) == (file, content)


def test_writing_a_model_keeps_files_of_others(tmp_path: Path) -> None:
    left, other = (f"{name}.{2**31 - 1}.partial" for name in ("a.gguf", "report"))
    for name in (left, other):
        (tmp_path / name).touch()
    with writing(tmp_path / "b.gguf") as partial:
        partial.touch()
    assert {one.name for one in tmp_path.iterdir()} == {"b.gguf", other}


def test_private_files(tmp_path: Path) -> None:
    """The temporary file is private, too."""
    path = tmp_path / "own" / "a.json"
    write_atomically(path, "secret", private=True)
    with replacing(tmp_path / "b.json", private=True) as partial:
        partial.write_text("secret")
        for private in (path, partial):
            assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "text") == b"abc"
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "pipe", "it is a pipe or a device"),
        (Path("/dev/zero"), "it is a pipe or a device"),
        (Path("a\0b"), "this is not a file name"),
        (Path("\ud800"), "this is not a file name"),
    ):
        with pytest.raises(OSError, match=why):
            read_file(path, streams=True)
    with pytest.raises(OSError, match="more than 2 bytes"):
        read_file(tmp_path / "text", most=2)


def test_characters_that_steer_a_terminal_are_replaced() -> None:
    assert harmless("\x1b[31mred\x07 \x9bé\x7f") == "\ufffd[31mred\ufffd \ufffdé\ufffd"
    for mark in "\u202a\u202e\u2066\u2069":
        assert harmless(f"a{mark}b\u200fc") == "a\ufffdb\u200fc", "but not what Arabic text needs"
    assert harmless("one\r\n\ttwo\n") == "one\n\ttwo\n", "lines and tabs stay"
    assert printable(" a\x1b[31m\nb\u202e\u3000م\u200cخ ") == "a\ufffd[31m b\ufffd\u3000م\u200cخ"
    assert printable("x" * 300, 10) == "x" * 9 + "…"


def test_long_lists_are_shortened() -> None:
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(list("abcdef")) == "a, b, c, d and 2 more"


def test_sizes() -> None:
    sizes = {
        7: "7 B",
        1_500: "1.5 kB",
        5 << 20: "5.2 MB",
        4_700_000_000: "4.7 GB",
        2 << 40: "2.2 TB",
    }
    assert {size: gigabytes(size) for size in sizes} == sizes
