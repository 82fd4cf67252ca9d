"""Session files: damage, failures and kills."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec.errors import SessionError
from localspec.sessions.session_file import DamagedSession, Part, SessionFile, write
from tests.support.patches import files_of_at_most

FACTS = {"conversation": [{"role": "user", "content": "Zoë: “hm”"}], "version": 3}
PARTS: dict[str, Part] = {
    "numbers": np.arange(1000, dtype=np.int32),
    "nothing": np.empty(0, np.int32),
    "bytes": np.arange(5001, dtype=np.uint64).astype(np.uint8),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "a [1].session"
    write(found, FACTS, PARTS)
    return found


@pytest.mark.parametrize("map_file", [np.memmap, lambda *_: os.close(-1)])
def test_written_file_is_read(path: Path, map_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a folder whose files cannot be mapped."""
    monkeypatch.setattr(np, "memmap", map_file)
    assert readable(path) == ["facts", *PARTS]
    file = SessionFile(path)
    with pytest.raises(DamagedSession, match=r"a part of a \[1\].session is missing"):
        file.part("other")
    assert path.stat().st_mode & 0o077 == 0, "private to the user"


@pytest.mark.parametrize("content", [b"", b"GGUF", b"# notes\n" * 9])
def test_files_of_other_kinds(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.md"
    path.write_bytes(content)
    with pytest.raises(SessionError, match="is not a session of localspec") as caught:
        SessionFile(path)
    assert not isinstance(caught.value, DamagedSession)
    with pytest.raises(SessionError, match="cannot be read: Is a directory"):
        SessionFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        SessionFile(tmp_path / "none.session")


def readable(path: Path) -> list[str]:
    """The readable parts of a file, and "facts"."""
    try:
        file = SessionFile(path)
    except SessionError:
        return []
    assert file.facts == FACTS
    found = ["facts"]
    for name, part in PARTS.items():
        with suppress(DamagedSession):
            assert file.part(name).dtype == part.dtype
            assert (file.part(name) == part).all()
            found.append(name)
    return found


def test_every_truncation_is_detected(path: Path) -> None:
    """Readable parts are right; the facts are readable without the rest."""
    data = path.read_bytes()
    complete = ["facts", *PARTS]
    assert readable(path) == complete
    for length in [*range(700), *range(700, len(data) - 64, 97)]:
        path.write_bytes(data[:length])
        got = readable(path)
        assert got != complete
        assert ("facts" in got) == (length > 500 or "nothing" in got)


def test_every_changed_byte_is_detected(path: Path) -> None:
    """Except for padding between the parts."""
    data, undetected = path.read_bytes(), []
    places = np.random.default_rng(1).choice(len(data), 700, replace=False)
    for at in {*range(40), *places.tolist()}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        if readable(path) == ["facts", *PARTS]:
            undetected.append(data[at])
    assert set(undetected) <= {0, ord(" ")}
    assert len(undetected) < 20


def test_full_disk_keeps_the_old_file(path: Path) -> None:
    with files_of_at_most(3000), pytest.raises(SessionError, match=r"cannot be saved .* Free some"):
        write(path, {"version": 4}, PARTS)
    assert readable(path) == ["facts", *PARTS]
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.nightly
def test_files_of_killed_processes_are_removed(path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    left, running = (f"{path.name}.{pid}.partial" for pid in (gone.pid, os.getppid()))
    other = f"b.session.{gone.pid}.partial"
    for name in (left, running, other):
        path.with_name(name).touch()
    link = path.with_name("link.session")
    link.symlink_to(path)
    write(link, FACTS, PARTS)
    assert {one.name for one in path.parent.iterdir()} == {path.name, running, other, link.name}
