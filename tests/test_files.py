"""Files that are replaced whole, whatever comes in between."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from localspec.files import read_file, replacing, write_atomically


def in_a_process(program: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the path as its argument."""
    return subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("content", ["", "ü 🦊\r\n\n", b"\x00\xff\r\n"])
def test_what_was_written_is_there(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "new" / "folder" / "a.json"
    write_atomically(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    write_atomically(path, "next")
    assert path.read_text() == "next"
    assert list(path.parent.iterdir()) == [path]


def test_until_the_end_the_old_content_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    with replacing(path) as partial:
        partial.write_text("new")
        assert partial.parent == path.parent
        assert str(os.getpid()) in partial.name
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert not partial.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, OSError])
def test_whatever_is_raised_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(path) as partial:
            partial.write_text("half of")
            raise error

    with pytest.raises(error):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


FULL = """
import resource, sys
from pathlib import Path
from localspec.files import write_atomically
path = Path(sys.argv[1])
write_atomically(path, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(path, "new " * 1000)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.nightly
def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert in_a_process(FULL, path).stdout == "File too large\n"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, signal, sys
from pathlib import Path
from localspec.files import read_file, replacing, write_atomically
path = Path(sys.argv[1])
write_atomically(path, "old")
with replacing(path) as partial:
    partial.write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.nightly
def test_a_crash_before_the_name_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    assert in_a_process(KILLED, path).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    # What is left can be mistaken for nothing that anyone reads, and is in nobody's way.
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".partial"}
    write_atomically(path, "new")
    assert path.read_text() == "new"


def test_what_is_private_is_nobody_elses(tmp_path: Path) -> None:
    """Before it has its name as well."""
    path = tmp_path / "own" / "a.json"
    write_atomically(path, "secret", private=True)
    with replacing(tmp_path / "b.json", private=True) as partial:
        partial.write_text("secret")
        for private in (path, partial):
            assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_file_is_read_and_nothing_else(tmp_path: Path) -> None:
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


def test_what_a_shell_hands_over_is_read() -> None:
    reads, writes = os.pipe()
    os.write(writes, b"abc")
    os.close(writes)
    try:
        with pytest.raises(OSError, match="pipe"):
            read_file(Path(f"/dev/fd/{reads}"))
        assert read_file(Path(f"/dev/fd/{reads}"), streams=True) == b"abc"
    finally:
        os.close(reads)
