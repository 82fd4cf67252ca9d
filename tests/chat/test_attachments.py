"""Text files and images attached to a message."""

import os
from pathlib import Path

import pytest

from localspec.chat.attachments import MAX_BYTES, read_attachment
from localspec.chat.conversation import Attachment
from localspec.errors import UsageError
from tests.support.images import png


def refusal(name: Path | str) -> str:
    with pytest.raises(UsageError) as caught:
        read_attachment(str(name))
    return str(caught.value)


def test_text_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\ufeffGrüße\n", encoding="utf-8")
    assert read_attachment(str(path)) == Attachment("notes.txt", "Grüße\n")
    path.write_bytes(b"a" * MAX_BYTES)
    assert len(read_attachment(str(path)).text) == MAX_BYTES


@pytest.mark.parametrize("typed", ['"{}/my notes.txt"', "'{}/my notes.txt'", r"{}/my\ notes.txt"])
def test_names_that_terminals_quote(tmp_path: Path, typed: str) -> None:
    """As they do when a file is dropped on them."""
    (tmp_path / "my notes.txt").write_text("fox")
    assert read_attachment(typed.format(tmp_path)) == Attachment("my notes.txt", "fox")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, " There is no file {}. Check the path."),
        (b"a" * (MAX_BYTES + 1), " {} is larger than 1 MiB, which fits no context. Keep only"),
        (b"\x89PNG", "is not UTF-8: byte 0"),
        (b"a\0b", "has a NUL at byte 1"),
    ],
)
def test_invalid_text_files(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert why.format(path) in f" {refusal(path)}"


def test_pipes_devices_and_folders_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for odd in (path, "/dev/zero", "/dev/stdin"):
        assert "it is a pipe or a device, not a file" in refusal(odd)
    assert "cannot be read: it is a folder, not a file. Name a text" in refusal(tmp_path)


def test_image_file(tmp_path: Path) -> None:
    path = tmp_path / "fox.PNG"
    path.write_bytes(png(1))
    attached = read_attachment(str(path))
    assert (attached.name, attached.image) == ("fox.PNG", png(1))
    path.write_text("no image")
    assert "Give one as PNG" in refusal(path)
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert "larger than 16 MiB" in refusal(path)
