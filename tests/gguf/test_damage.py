"""Files on which llama.cpp aborts are refused: valid ones with some changed values. Child processes
show the aborts."""

import json
import random
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from localspec.errors import ModelInvalid
from localspec.gguf.damage import damage
from localspec.gguf.description import require_usable
from localspec.gguf.file import Array, TensorInfo
from localspec.gguf.reader import read_gguf
from localspec.llama.types import TYPES
from tests.cli.process import environment, finished, run_python
from tests.gguf.mutations import mutate
from tests.gguf.raw import STRING, Value, key, keyed, text
from tests.support import heads, mtp
from tests.support.block_heads import block
from tests.support.ggufs import tiny_bert, tiny_hybrid, tiny_llama, tiny_mamba

NAN = float("nan")
ABORTED, DIVIDED, FAULT = -6, -8, -11
_EPSILON = "attention.layer_norm_rms_epsilon"
_GROUPS, _USED = "expert_group_count", "expert_group_used_count"
_TURNED, _KEY_LENGTH = "rope.dimension_count", "attention.key_length"
_EXPERTS = "expert_used_count"
_SECTIONS, _INTERVAL = "rope.dimension_sections", "full_attention_interval"


class Change(NamedTuple):
    """A valid file, and values that make it unusable: by key of the architecture's section; None
    removes one. `error`: the key in the message; `signal`: which ends llama.cpp."""

    make: Callable[[Path], Path]
    values: dict[str, Value]
    error: str
    signal: int = ABORTED


def tiny_jamba(path: Path) -> Path:
    """Mamba's metadata under another name; llama.cpp reads nothing else."""
    path.write_bytes(tiny_mamba(path).read_bytes().replace(b"mamba", b"jamba"))
    return path


CASES = {
    "no layers": Change(tiny_llama, {"block_count": 0}, "block_count"),
    "many layers": Change(tiny_mamba, {"block_count": 513}, "block_count"),
    "nextn": Change(mtp.glm, {"nextn_predict_layers": 4}, "nextn_predict_layers"),
    "nothing but nextn": Change(mtp.glm, {"nextn_predict_layers": 3}, "nextn_predict_layers"),
    "epsilon": Change(tiny_llama, {_EPSILON: -1e-5}, _EPSILON),
    "epsilon NaN": Change(tiny_hybrid, {_EPSILON: NAN}, _EPSILON),
    "rope scaling": Change(tiny_llama, {"rope.scaling.type": "yam"}, "rope.scaling.type"),
    "rotations": Change(mtp.qwen, {_TURNED: 34}, _TURNED),
    "odd rotations": Change(mtp.qwen, {_TURNED: 31}, _TURNED),
    "heads' width": Change(mtp.qwen, {_TURNED: 66, _KEY_LENGTH: None}, _TURNED),
    "sections": Change(mtp.qwen, {_SECTIONS: [0, -1, 0, 16]}, _SECTIONS),
    "wide sections": Change(mtp.qwen, {_SECTIONS: [16, 16, 1, 0]}, _SECTIONS),
    "interval": Change(mtp.qwen, {_INTERVAL: 0}, _INTERVAL, DIVIDED),
    "delta": Change(mtp.qwen, {"ssm.inner_size": 33}, "ssm.inner_size"),
    "double": Change(tiny_jamba, {"ssm.inner_size": 64}, "ssm.inner_size"),
    "many experts": Change(mtp.glm, {"expert_count": 1025}, _EXPERTS),
    "no experts": Change(mtp.glm, {"expert_count": 0, _EXPERTS: 0}, _EXPERTS),
    "none of them": Change(mtp.glm, {_EXPERTS: 0}, _EXPERTS),
    "more of them": Change(mtp.glm, {_EXPERTS: 3}, _EXPERTS),
    "in a dense one": Change(tiny_llama, {_EXPERTS: 1}, _EXPERTS),
    "groups": Change(mtp.glm, {_GROUPS: 2}, _GROUPS),
    "groups in a dense one": Change(tiny_llama, {_GROUPS: 1}, _GROUPS),
    "odd groups": Change(mtp.glm, {"expert_count": 5, _GROUPS: 2, _USED: 1}, _GROUPS),
    "no group": Change(mtp.glm, {"expert_count": 4, _GROUPS: 2}, _GROUPS),
}


def write_changed(path: Path, make: Callable[[Path], Path], values: Mapping[str, Value]) -> Path:
    """Write a valid file with changed values of the tokenizer, or the architecture's section."""
    file = read_gguf(make(path))
    data = path.read_bytes()
    body, (count,) = data[24:], struct.unpack_from("<Q", data, 16)
    new = {
        name if name.startswith("tokenizer.") else f"{file.architecture}.{name}": value
        for name, value in values.items()
    }
    for name in new.keys() & file.metadata.keys():
        old: Any = file.metadata[name]
        (entry,) = keyed({name: [*old] if isinstance(old, Array) else old})
        assert body.count(entry) == 1
        body, count = body.replace(entry, b""), count - 1
    # Weights keep their alignment of 32 bytes.
    more = [*keyed(new), key("test.filled", STRING, text(b""))]
    odd = (len(data) - 24 - len(body) - sum(map(len, more))) % 32
    more[-1] = key("test.filled", STRING, text(bytes(odd)))
    path.write_bytes(data[:16] + struct.pack("<Q", count + len(more)) + b"".join(more) + body)
    return path


def status(path: Path) -> int:
    """Exit status of a process that opens the file and decodes a token; 3 for a refusal."""
    command = (sys.executable, "-m", "localspec.llama.crash_test", str(path))
    env = environment(GGML_NO_BACKTRACE="1")  # else ggml calls a debugger
    return finished(command=command, env=env, errors="replace").code


@pytest.mark.nightly
@pytest.mark.parametrize("what", sorted(CASES))
def test_values_on_which_llama_cpp_aborts_are_refused(what: str, tmp_path: Path) -> None:
    case = CASES[what]
    path = write_changed(tmp_path / "a.gguf", case.make, case.values)
    with pytest.raises(ModelInvalid, match=r"it is damaged: .* Download it again") as refused:
        require_usable(path)
    assert f".{case.error} is invalid" in str(refused.value)
    assert status(path) == case.signal


@pytest.mark.parametrize(
    ("name", "kind"), [("blk.1.ffn_up", "I16"), ("output_norm", "I32"), ("blk.0.attn_q", "I16")]
)
def test_weights_of_unsupported_types_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    path, name = tiny_llama(tmp_path / "a.gguf", more=True), f"{name}.weight"
    number, size = next((n, size) for n, (known, _, size) in TYPES.items() if known == kind)
    data = bytearray(path.read_bytes())
    tensor = next(t for t in read_gguf(path).tensors if t.name == name)
    # After a tensor's name: the number of its dimensions, these, and its type.
    at = data.index(text(name)) + len(text(name)) + 4 + 8 * len(tensor.shape)
    assert tensor.size == tensor.elements * size, "of the same size"
    struct.pack_into("<I", data, at, number)
    path.write_bytes(data)
    with pytest.raises(ModelInvalid, match=f"its {name} is of type {kind}"):
        require_usable(path)
    assert status(path) in (ABORTED, FAULT)


def test_lists_of_tokens_may_be_integers(tmp_path: Path) -> None:
    """As in heads with a part of the vocabulary, and with experts chosen by token."""
    sound = read_gguf(tiny_llama(tmp_path / "a.gguf"))
    names = ("d2t", "d2t.weight", "blk.0.ffn_gate_tid2eid.weight")
    lists = [TensorInfo(name, (8,), "I64", 0, 64) for name in names]
    assert damage(replace(sound, tensors=(*sound.tensors, *lists))) is None


@pytest.mark.parametrize(
    ("first", "last", "refused"),
    [
        ("blk.1.attn_norm.weight", "blk.1.attn_q.weight", True),
        ("blk.1.attn_norm.weight", "blk.1.attn_norm.weight", False),
        ("blk.1.attn_q.weight", "blk.1.attn_output.weight", False),  # in layers that were added
    ],
)
def test_holes_are_refused(first: str, last: str, refused: bool, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "a.gguf")
    found = read_gguf(path).by_name
    start, end = found[first].offset, found[last].offset + found[last].size
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(end - start) + data[end:])
    if not refused:
        require_usable(path)
        return
    with pytest.raises(ModelInvalid, match=rf"only zeros at {first}\. Download it again, or"):
        require_usable(path)


def test_zero_rotations_are_refused(tmp_path: Path) -> None:
    """ggml would loop endlessly, so no process shows it."""
    path = write_changed(tmp_path / "a.gguf", mtp.glm, {_TURNED: 0})
    with pytest.raises(ModelInvalid, match=f"{_TURNED} is invalid"):
        require_usable(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(tiny_llama, tokenizer=False), "it has no vocabulary. Choose a GGUF of a chat"),
        (tiny_bert, r"it is an embedding model \(architecture bert\). Choose a GGUF of a chat"),
        *(
            (make, "it is a trained head .* Name a model instead; .* takes a head with --draft")
            for make in (heads.eagle, heads.medusa, block, partial(mtp.glm, trunk=False))
        ),
    ],
)
def test_files_of_other_kinds(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    make(tmp_path / "a.gguf")
    with pytest.raises(ModelInvalid, match=f"^a.gguf cannot be used: {words}"):
        require_usable(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    "make",
    [
        tiny_llama,
        partial(tiny_llama, more=True),
        tiny_mamba,
        tiny_hybrid,
        tiny_bert,
        mtp.glm,
        mtp.qwen,
        lambda path: write_changed(path, tiny_llama, {"rope.scaling.type": "yarn"}),
        lambda path: write_changed(path, tiny_mamba, {_TURNED: 0}),
        lambda path: write_changed(path, mtp.glm, {_GROUPS: 1}),
    ],
)
def test_valid_files_are_accepted(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf")
    assert damage(read_gguf(path)) is None


def test_repeated_and_lacking_tokens(tmp_path: Path) -> None:
    """llama.cpp names empty tokens by their numbers, and reads texts up to a NUL."""
    path = tmp_path / "a.gguf"
    tokens = read_gguf(tiny_llama(path)).array("tokenizer.ggml.tokens") or ()
    for last, why, code in (
        (["", ""], None, 0),
        (["ab\0c", "ab\0d"], "It is damaged: it lists a token twice.", ABORTED),
    ):
        write_changed(path, tiny_llama, {"tokenizer.ggml.tokens": [*map(str, tokens)][:-2] + last})
        assert (damage(read_gguf(path)), status(path)) == (why, code)
    write_changed(path, tiny_llama, {"tokenizer.ggml.model": "llama"})
    assert damage(read_gguf(path)) == "It is damaged: it lacks tokens of single bytes."


# 200 damaged files: each is read or refused within a second and 200 MB, in a child process with a
# bounded address space.


MUTATIONS, SEED = 200, 5
MEMORY = 200 << 20
SECONDS = 1.0
"""Of processor time, so that a busy machine does not fail the test."""

_CHILD = """
import json, resource, sys, time
from pathlib import Path
from localspec.errors import LocalspecError
from localspec.gguf.file import Array
from localspec.gguf.reader import read_gguf

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
results = []
for path in sorted(Path(sys.argv[1]).iterdir()):
    before = time.process_time()
    try:
        file = read_gguf(path)
        message = "valid"
        for value in file.metadata.values():
            if isinstance(value, Array) and len(value):
                value[0], value[-1]
        file.n_parameters, file.architecture
    except LocalspecError as error:
        message = str(error)
    results.append([path.name, message, time.process_time() - before])
json.dump(results, sys.stdout)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to bound memory")
def test_damaged_files_take_bounded_time_and_memory(tmp_path: Path, draft_path: Path) -> None:
    rng = random.Random(SEED)
    whole = draft_path.read_bytes()
    for number in range(MUTATIONS):
        (tmp_path / f"{number:03d}.gguf").write_bytes(mutate(whole, rng))
    results = json.loads(run_python(_CHILD, tmp_path, MEMORY).succeeded())
    assert len(results) == MUTATIONS
    refused = 0
    for name, message, seconds in results:
        assert seconds < SECONDS, (name, message)
        if message != "valid":
            refused += 1
            assert name in message
            assert message.count(". ") == 1, message
    assert refused > MUTATIONS / 2
