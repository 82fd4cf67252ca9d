"""Reading GGUF files, valid and damaged, and writing them."""

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from localspec.errors import ModelInvalid, ModelNotFound
from localspec.gguf.file import Array
from localspec.gguf.reader import LIMITS, read_gguf
from localspec.gguf.writer import NewTensor, write_gguf
from localspec.llama.types import TYPES
from tests.gguf.raw import (
    ARRAY,
    BOOL,
    STRING,
    U32,
    U64,
    Tensor,
    Value,
    array,
    gguf,
    key,
    keyed,
    scalar,
    write_model,
)
from tests.support.ggufs import tiny_llama


@pytest.mark.parametrize("which", ["target_path", "draft_path"])
def test_reader_equals_the_package_gguf(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    ours, theirs = read_gguf(path), GGUFReader(path)
    fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata.keys() == fields.keys()
    for name, field in fields.items():
        value = ours.metadata[name]
        assert (list(value) if isinstance(value, Array) else value) == field.contents(), name
    assert [(t.name, t.type, t.shape, t.offset, t.size) for t in ours.tensors] == [
        (t.name, t.tensor_type.name, tuple(map(int, t.shape)), t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]
    assert ours.n_parameters == sum(int(t.n_elements) for t in theirs.tensors)
    assert (ours.size, ours.parts) == (path.stat().st_size, (path,))


def test_block_sizes_equal_those_of_llama_cpp() -> None:
    from llama_cpp._ggml import libggml

    block_of = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int)(("ggml_blck_size", libggml))
    size_of = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(("ggml_type_size", libggml))
    for number, (name, block, size) in TYPES.items():
        assert (block_of(number), size_of(number)) == (block, size), name


def test_arrays_are_decoded_lazily(tmp_path: Path) -> None:
    texts = ["a", "", "né", "\x1b[31m"]
    lists: dict[str, Any] = {"t": texts, "same": texts, "n": [3, -1, 7]}
    flags, broken = array(BOOL, [True, False]), array(STRING, [b"\xff\xfe", b"ok"])
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf([*keyed(lists), key("b", ARRAY, flags), key("x", ARRAY, broken)]))
    found: dict[str, Any] = dict(read_gguf(path).metadata)
    wanted = lists | {"b": [True, False], "x": ["\ufffd\ufffd", "ok"]}
    assert {name: list(value) for name, value in found.items()} == wanted
    assert (len(found["t"]), found["t"][2], found["t"][-1]) == (4, "né", texts[3])
    assert found["t"].bytes_of(2) == "né".encode()
    assert found["t"] == found["same"] != found["x"]
    with pytest.raises(IndexError):
        found["t"][4]


def test_values_of_other_types_are_ignored(tmp_path: Path) -> None:
    own: dict[str, Value] = {"context_length": "many", "block_count": 4}
    file = read_gguf(write_model(tmp_path / "a.gguf", own=own, more=keyed({"f": 0.5, "b": True})))
    assert (file.metadata["f"], file.metadata["b"], file.integer("b")) == (0.5, True, None)
    assert (file.own("context_length"), file.own_integer("context_length")) == ("many", None)
    assert (file.own_integer("block_count"), file.text("llama.block_count")) == (4, None)
    assert file.array("general.architecture") is None


def test_huge_text_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf(keyed({"tokenizer.huggingface.json": "x" * (9 << 20), "n": 2})))
    file = read_gguf(path)
    assert "tokenizer.huggingface.json" not in file.metadata
    assert file.integer("n") == 2


def _long(count: int) -> bytes:
    return struct.pack("<Q", count)


TENSOR = Tensor("w", (32, 2))
ENORMOUS = 1 << 63


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "is empty"),
        (b"GG", "is not a GGUF file"),
        (b"ELF?" * 8, "is not a GGUF file"),
        (gguf()[:20], "ends in the middle"),
        (gguf(version=1), "version 1"),
        (gguf(version=3 << 24), "version"),
        (gguf(more_keys=ENORMOUS), "more keys than any model"),
        (gguf(more_tensors=ENORMOUS), "more tensors than any model"),
        (gguf(more_keys=3), "key of 0 bytes"),
        (gguf([key("a" * 60, U32, scalar(U32, 1))])[:90], "ends in the middle"),
        (gguf([_long(ENORMOUS) + b"a"], data=64), "key of 9223372036854775808 bytes"),
        (gguf([key("", U32, scalar(U32, 1))]), "key of 0 bytes"),
        (gguf([key(b"\xff", U32, scalar(U32, 1))]), "not UTF-8"),
        (gguf([key("a", 77, b"")], data=32), "unknown type 77"),
        (gguf([key("a", STRING, _long(ENORMOUS))]), "ends in the middle"),
        (gguf([key("a", ARRAY, struct.pack("<IQ", STRING, ENORMOUS))]), "more strings than any"),
        (gguf([key("a", ARRAY, struct.pack("<IQ", U64, ENORMOUS))]), "ends in the middle"),
        (gguf([key("a", ARRAY, struct.pack("<IQ", 1, ENORMOUS))]), "ends in the middle"),
        (gguf([key("a", ARRAY, struct.pack("<IQ", 99, 1))]), "unknown type 99"),
        (gguf([key("a", ARRAY, struct.pack("<IQ", ARRAY, 1))]), "array of arrays"),
        (gguf([key("a", ARRAY, array(STRING, ["x", ""])[:-8] + _long(1 << 40))]), "longer than"),
        (gguf([key("a", U32, scalar(U32, 1))] * 2), "same key twice"),
        (gguf([key("general.alignment", U32, scalar(U32, 0))], [TENSOR], 256), "alignment"),
        (gguf([key("general.alignment", U32, scalar(U32, 48))], [TENSOR], 256), "alignment"),
        (gguf([], [TENSOR], 255), "is incomplete: its tensors need"),
        (gguf([], [TENSOR, TENSOR], 256), "two tensors with the same name"),
        (gguf([], [Tensor("w", (32,), offset=8)], 256), "not aligned"),
        (gguf([], [Tensor("w", (32,), offset=(1 << 64) - 32)], 256), "is incomplete"),
        (gguf([], [Tensor("w", (1,) * 5)], 256), "5 dimensions"),
        (gguf([], [Tensor("w", (1 << 40, 1 << 40))], 256), "impossible shape"),
        (gguf([], [Tensor("w", (ENORMOUS, 0))], 256), "impossible shape"),
        (gguf([], [Tensor("w", (33,), kind=8)], 256), "impossible shape"),
        (gguf([], [Tensor("w", (32,), kind=4)], 256), "type that this llama.cpp does not know"),
        (gguf([], [Tensor("w", (32,), kind=4_000_000_000)], 256), "does not know"),
        (gguf([], [Tensor(b"\xc3", (32,))], 256), "not UTF-8"),
        (gguf([], [Tensor("w" * 2000, (32,))], 256), "tensor name of 2000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_is_named(tmp_path: Path, content: bytes, cause: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelInvalid) as raised:
        read_gguf(path)
    sentence = str(raised.value)
    assert str(path) in sentence
    assert cause in sentence
    assert sentence.count(". ") == 1


@pytest.mark.parametrize("name", ["m.gguf.part1of2", "m.gguf-split-a", "m.GGUF.00"])
def test_pieces_of_a_cut_file_are_to_be_joined(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for content in (gguf([], [TENSOR], 256)[:-200], b"\x07" * 999):
        path.write_bytes(content)
        with pytest.raises(ModelInvalid, match=r"a piece of m\.(gguf|GGUF), join all pieces"):
            read_gguf(path)


def test_huge_counts_in_a_sparse_file_are_refused(tmp_path: Path) -> None:
    """Zeros are empty texts: a hole of a terabyte would hold 10^11 of them."""
    path = tmp_path / "sparse.gguf"
    for kind, count in ((STRING, LIMITS["strings"] + 1), (STRING, 1 << 36), (U64, 1 << 36)):
        path.write_bytes(gguf([key("a", ARRAY, struct.pack("<IQ", kind, count))]))
        os.truncate(path, 1 << 40)
        with pytest.raises(ModelInvalid, match="than any model"):
            read_gguf(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    reasons = {"none.gguf": "no file", ".": "is a folder", "pipe.gguf": "is not a file"}
    for name, why in (reasons | {"a\0b.gguf": "is not a path"}).items():
        with pytest.raises(ModelNotFound, match=why):
            read_gguf(tmp_path / name)


def _split(folder: Path, count: int, *, total: int = 3) -> Path:
    """Parts of a model with one tensor of 64 weights in each."""
    for number in range(count):
        keys = [key("split.no", 2, scalar(2, number)), key("split.count", 2, scalar(2, count))]
        keys.append(key("split.tensors.count", 5, scalar(5, total)))
        keys += keyed({"general.architecture": "llama" if number == 0 else None})
        path = folder / f"m-{number + 1:05d}-of-{count:05d}.gguf"
        path.write_bytes(gguf(keys, [Tensor(f"w{number}", (32, 2))], 256))
    return folder / f"m-00001-of-{count:05d}.gguf"


def test_split_file_is_read_as_one(tmp_path: Path) -> None:
    first = _split(tmp_path, 3)
    file = read_gguf(first)
    assert [t.name for t in file.tensors] == ["w0", "w1", "w2"]
    assert [t.part for t in file.tensors] == [0, 1, 2]
    assert (file.n_parameters, file.weight_bytes) == (192, 768)
    assert file.parts == tuple(sorted(tmp_path.iterdir()))
    assert file.size == sum(path.stat().st_size for path in file.parts)


def test_changed_files_are_read_again(tmp_path: Path) -> None:
    first = _split(tmp_path, 2, total=2)
    second = tmp_path / "m-00002-of-00002.gguf"
    for path in (first, second):
        os.utime(path, (1000, 1000))
    file = read_gguf(first)
    assert read_gguf(first) is file  # not read again
    content = second.read_bytes()
    second.write_bytes(content[:-1])
    os.utime(second, (1000, 1000))
    with pytest.raises(ModelInvalid):
        read_gguf(first)
    second.write_bytes(content)
    assert read_gguf(first) == file
    first.write_bytes(first.read_bytes().replace(b"llama", b"qwen2"))
    os.utime(first, (1010, 1010))
    assert read_gguf(first).architecture == "qwen2"


def test_inconsistent_parts_are_refused(tmp_path: Path) -> None:
    first = _split(tmp_path, 3)
    with pytest.raises(ModelInvalid, match="should have 4 tensors"):
        read_gguf(_split(tmp_path, 3, total=4))
    other = tmp_path / "m-00003-of-00003.gguf"
    other.write_bytes((tmp_path / "m-00002-of-00003.gguf").read_bytes())
    with pytest.raises(ModelInvalid, match="is not part 3 of 3"):
        read_gguf(first)
    with pytest.raises(ModelInvalid, match=r"first one \(m-00001-of-00003\.gguf\)"):
        read_gguf(other)
    other.unlink()
    with pytest.raises(ModelNotFound, match=r"m-00003-of-00003\.gguf is missing"):
        read_gguf(first)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelInvalid, match="its name does not show"):
        read_gguf(tmp_path / "renamed.gguf")


def test_offsets_of_weights(tmp_path: Path) -> None:
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
    assert dict(copy.metadata) == dict(file.metadata), "without split.count"
    assert copy.kinds.items() >= file.kinds.items()
    found = [NewTensor(t.name, t.shape, t.type, data[t.name]) for t in copy.tensors]
    assert found == tensors
    assert {t.name: raw[t.offset : t.offset + t.size] for t in copy.tensors} == data
