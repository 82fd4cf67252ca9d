"""Files that llama.cpp would abort over are refused; that it does is seen, in processes of its own.

Each file is a sound model in which some numbers or texts say something else.
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import ModelInvalid
from localspec.gguf.damage import damage
from localspec.gguf.description import require_usable
from localspec.gguf.file import Array, TensorInfo
from localspec.gguf.reader import read_gguf
from localspec.llama.types import TYPES
from tests.gguf.mutations import mutate
from tests.gguf.raw import ARRAY, F32, STRING, U32, array, key, scalar, text
from tests.support import heads, mtp
from tests.support.ggufs import tiny_bert, tiny_hybrid, tiny_llama, tiny_mamba

NAN = float("nan")
ABORTED, DIVIDED, FAULT = -6, -8, -11
I32 = 5  # GGUF's type
_EPSILON = "attention.layer_norm_rms_epsilon"


@dataclass(frozen=True)
class Said:
    """What a file says instead.

    Attributes:
        make: writes a sound one.
        changes: values by key of the architecture's section, None where that is taken away.
        told: what is said about it.
        ends: how llama.cpp takes it, a signal.
    """

    make: Callable[[Path], Path]
    changes: dict[str, float | int | str | list[int] | None]
    told: str
    ends: int = ABORTED


def tiny_jamba(path: Path) -> Path:
    """Mamba's numbers under another name; no further than them llama.cpp reads."""
    path.write_bytes(tiny_mamba(path).read_bytes().replace(b"mamba", b"jamba"))
    return path


CASES = {
    "no layers": Said(tiny_llama, {"block_count": 0}, "0 layers, and llama.cpp takes 1 to 512"),
    "many layers": Said(tiny_mamba, {"block_count": 513}, "513 layers"),
    "nextn": Said(mtp.glm, {"nextn_predict_layers": 4}, "4 of its 3 layers predict ahead"),
    "nothing but nextn": Said(mtp.glm, {"nextn_predict_layers": 3}, "3 of its 3 layers"),
    "epsilon": Said(tiny_llama, {_EPSILON: -1e-5}, "epsilon is -1e-05"),
    "epsilon NaN": Said(tiny_hybrid, {_EPSILON: NAN}, "epsilon is nan"),
    "rope scaling": Said(tiny_llama, {"rope.scaling.type": "yam"}, "rope.scaling.type is 'yam'"),
    "rotations": Said(mtp.qwen, {"rope.dimension_count": 34}, "34 numbers of heads that have 32"),
    "odd rotations": Said(mtp.qwen, {"rope.dimension_count": 31}, "31 numbers of heads"),
    "heads' width": Said(
        mtp.qwen, {"rope.dimension_count": 66, "attention.key_length": None}, "heads that have 32"
    ),
    "sections": Said(
        mtp.qwen, {"rope.dimension_sections": [0, -1, 0, 16]}, "by none of its positions"
    ),
    "wide sections": Said(
        mtp.qwen, {"rope.dimension_sections": [16, 16, 1, 0]}, "33 numbers of heads that have 32"
    ),
    "interval": Said(
        mtp.qwen, {"full_attention_interval": 0}, "full_attention_interval is 0", DIVIDED
    ),
    "delta": Said(mtp.qwen, {"ssm.inner_size": 33}, "33 wide, and not 2 times 16"),
    "double": Said(tiny_jamba, {"ssm.inner_size": 64}, "64 wide, and not twice 64"),
    "many experts": Said(mtp.glm, {"expert_count": 1025}, "uses 1 of 1025 experts"),
    "no experts": Said(mtp.glm, {"expert_count": 0, "expert_used_count": 0}, "0 of 0 experts"),
    "none of them": Said(mtp.glm, {"expert_used_count": 0}, "uses 0 of 2 experts"),
    "more of them": Said(mtp.glm, {"expert_used_count": 3}, "uses 3 of 2 experts"),
    "in a dense one": Said(tiny_llama, {"expert_used_count": 1}, "uses 1 of 0 experts"),
    "groups": Said(mtp.glm, {"expert_group_count": 2}, "2 groups of 2 experts"),
    "groups in a dense one": Said(tiny_llama, {"expert_group_count": 1}, "1 groups of 0 experts"),
    "odd groups": Said(
        mtp.glm,
        {"expert_count": 5, "expert_group_count": 2, "expert_group_used_count": 1},
        "1 of 2 groups of 5 experts",
    ),
    "no group": Said(mtp.glm, {"expert_count": 4, "expert_group_count": 2}, "0 of 2 groups"),
}


def _entry(name: str, value: Any) -> bytes:
    if isinstance(value, list):
        return key(name, ARRAY, array(I32, value))
    kind = {str: STRING, float: F32, int: U32}[type(value)]
    return key(name, kind, scalar(kind, value))


def misstated(path: Path, said: Said) -> Path:
    """A sound file with other values."""
    architecture = read_gguf(said.make(path)).architecture
    data = path.read_bytes()
    length, (count,) = len(data), struct.unpack_from("<Q", data, 16)
    added = b""
    for name, value in said.changes.items():
        full = f"{architecture}.{name}"
        old = read_gguf(path).metadata.get(full)
        if old is not None:
            entry = _entry(full, [*old] if isinstance(old, Array) else old)
            assert data.count(entry) == 1
            data, count = data.replace(entry, b""), count - 1
        if value is not None:
            added, count = added + _entry(full, value), count + 1
    # The weights stay where they are, counted in steps of 32 bytes.
    filled = key("test.filled", STRING, text(b""))
    filled = key("test.filled", STRING, text(bytes((length - len(data + added + filled)) % 32)))
    head = data[:16] + struct.pack("<Q", count + 1)
    path.write_bytes(head + added + filled + data[24:])
    return path


def status(path: Path) -> int:
    """How a process ends that opens the file and decodes a token; 3 where it is refused there."""
    command = [sys.executable, "-m", "localspec.llama.trial", "file", str(path)]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}  # else ggml calls a debugger
    return subprocess.run(command, capture_output=True, env=environment, check=False).returncode


@pytest.mark.nightly
@pytest.mark.parametrize("what", sorted(CASES))
def test_what_llama_cpp_would_abort_over_is_refused(what: str, tmp_path: Path) -> None:
    path = misstated(tmp_path / "a.gguf", CASES[what])
    with pytest.raises(ModelInvalid, match=r"it is damaged: .* Download it again") as refused:
        require_usable(path)
    assert CASES[what].told in str(refused.value)
    assert status(path) == CASES[what].ends


@pytest.mark.parametrize(
    ("name", "kind"),
    [("blk.1.ffn_up.weight", "I16"), ("output_norm.weight", "I32"), ("blk.0.attn_q.weight", "I16")],
)
def test_weights_that_nothing_multiplies_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "a.gguf", more=True)
    number, size = next((n, size) for n, (known, _, size) in TYPES.items() if known == kind)
    data = bytearray(path.read_bytes())
    tensor = next(t for t in read_gguf(path).tensors if t.name == name)
    # Behind a tensor's name: the number of its dimensions, these, and its type.
    at = data.index(text(name)) + len(text(name)) + 4 + 8 * len(tensor.shape)
    assert tensor.size == tensor.elements * size, "it stays as long as it was"
    struct.pack_into("<I", data, at, number)
    path.write_bytes(data)
    with pytest.raises(ModelInvalid, match=f"its {name} is of type {kind}"):
        require_usable(path)
    assert status(path) in (ABORTED, FAULT)


def test_numbers_of_tokens_are_no_weights(tmp_path: Path) -> None:
    """Of a head for a part of the vocabulary, and of experts that are chosen by token."""
    sound = read_gguf(tiny_llama(tmp_path / "a.gguf"))
    names = ("d2t", "d2t.weight", "blk.0.ffn_gate_tid2eid.weight")
    lists = [TensorInfo(name, (8,), "I64", 0, 64) for name in names]
    assert damage(replace(sound, tensors=(*sound.tensors, *lists))) is None


def test_a_pass_that_would_never_end_is_refused(tmp_path: Path) -> None:
    """ggml steps over as many numbers as are rotated, and over none for ever: no process is asked
    to show it."""
    path = misstated(tmp_path / "a.gguf", Said(mtp.glm, {"rope.dimension_count": 0}, ""))
    with pytest.raises(ModelInvalid, match="rotates 0 numbers of heads that have 32"):
        require_usable(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(tiny_llama, tokenizer=False), "it has no vocabulary. Choose a GGUF of a chat"),
        (tiny_bert, r"it is an embedding model \(architecture bert\). Choose a GGUF of a chat"),
        (heads.eagle, "it is a trained head .* Give it with --draft"),
    ],
)
def test_what_generates_no_text_is_refused(
    make: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
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
        lambda path: misstated(path, Said(tiny_llama, {"rope.scaling.type": "yarn"}, "")),
        lambda path: misstated(path, Said(tiny_mamba, {"rope.dimension_count": 0}, "")),
        lambda path: misstated(path, Said(mtp.glm, {"expert_group_count": 1}, "")),
    ],
)
def test_sound_files_are_not(make: Callable[[Path], Path], tmp_path: Path) -> None:
    path = make(tmp_path / "a.gguf")
    assert damage(read_gguf(path)) is None


def test_empty_tokens_are_no_repetition(tmp_path: Path) -> None:
    """llama.cpp names them by their numbers. What is behind a NUL it does not read."""
    path = tiny_llama(tmp_path / "a.gguf")
    tokens = [*(read_gguf(path).array("tokenizer.ggml.tokens") or ())]
    entry = array(STRING, tokens)
    data = path.read_bytes()
    assert data.count(entry) == 1

    def told(one: str, other: str) -> tuple[str | None, int]:
        """Of two tokens of four letters in place of which others stand."""
        places = [i for i, token in enumerate(tokens) if len(str(token).encode()) == 4][-2:]
        changed = [*tokens]
        changed[places[0]], changed[places[1]] = one, other
        added = array(STRING, changed)
        path.write_bytes(data.replace(entry, added))
        if len(added) < len(entry):  # and another text is longer by so much
            name = key("general.name", STRING, text(b"llama-64x2"))
            assert data.count(name) == 1
            longer = key(
                "general.name", STRING, text(b"llama-64x2" + b"x" * (len(entry) - len(added)))
            )
            path.write_bytes(data.replace(entry, added).replace(name, longer))
        return damage(read_gguf(path)), status(path)

    assert told("", "") == (None, 0)
    assert told("ab\0c", "ab\0d") == ("It is damaged: it lists a token twice.", ABORTED)


# 200 damaged files: each is read, or refused in a sentence, in a second and 200 MB. In a process of
# its own, whose address space is bounded, so that a crash or a runaway allocation is the test's
# failure and not its end.


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
        said = "valid"
        for value in file.metadata.values():
            if isinstance(value, Array) and len(value):
                value[0], value[-1]
        file.n_parameters, file.architecture
    except LocalspecError as error:
        said = str(error)
    results.append([path.name, said, time.process_time() - before])
json.dump(results, sys.stdout)
"""


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux to bound memory")
def test_damaged_files_are_refused_in_bounded_time_and_memory(
    tmp_path: Path, draft_path: Path
) -> None:
    rng = random.Random(SEED)
    whole = draft_path.read_bytes()
    for number in range(MUTATIONS):
        (tmp_path / f"{number:03d}.gguf").write_bytes(mutate(whole, rng))
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path), str(MEMORY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len(results) == MUTATIONS
    refused = 0
    for name, said, seconds in results:
        assert seconds < SECONDS, (name, said)
        if said != "valid":
            refused += 1
            assert name in said
            assert said.count(". ") == 1, said
    assert refused > MUTATIONS / 2
