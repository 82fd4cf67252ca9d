"""What is written is what was read."""

from __future__ import annotations

from pathlib import Path

from localspec.gguf.reader import read_gguf
from localspec.gguf.writer import NewTensor, write_gguf
from tests.support.ggufs import tiny_llama


def test_what_is_written_is_what_was_read(tmp_path: Path) -> None:
    file = read_gguf(tiny_llama(tmp_path / "a.gguf"))
    raw = file.path.read_bytes()
    tensors = [
        NewTensor(t.name, t.shape, t.type, raw[t.offset : t.offset + t.size]) for t in file.tensors
    ]
    write_gguf(tmp_path / "b.gguf", file.metadata, file.kinds, tensors)
    copy = read_gguf(tmp_path / "b.gguf")
    assert dict(copy.metadata) == dict(file.metadata)
    assert copy.kinds == file.kinds
    assert [(t.name, t.shape, t.type, t.size) for t in copy.tensors] == [
        (t.name, t.shape, t.type, t.size) for t in file.tensors
    ]


def test_weights_are_where_the_list_says(tmp_path: Path) -> None:
    file = read_gguf(tiny_llama(tmp_path / "a.gguf"))
    data = {"first": b"\1" * 20, "second": b"\2" * 34 * 64, "last": b"\3" * 36}
    tensors = [
        NewTensor("first", (5,), "F32", data["first"]),
        NewTensor("second", (32, 64), "Q8_0", data["second"]),
        NewTensor("last", (32, 2), "Q4_0", data["last"]),
    ]
    path = tmp_path / "b.gguf"
    write_gguf(path, {**file.metadata, "split.count": 1}, {**file.kinds, "split.count": 2}, tensors)
    copy, raw = read_gguf(path), path.read_bytes()
    assert "split.count" not in copy.metadata
    assert {t.name: raw[t.offset : t.offset + t.size] for t in copy.tensors} == data
