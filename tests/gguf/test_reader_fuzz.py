"""200 damaged files: each is read, or refused in a sentence, in a second and 200 MB.

In a process of its own, whose address space is bounded, so that a crash or a runaway allocation is
the test's failure and not its end.
"""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest

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
                value[0], value[-1], value.head(2)
        file.n_parameters, file.architecture
    except LocalspecError as error:
        said = str(error)
    results.append([path.name, said, time.process_time() - before])
json.dump(results, sys.stdout)
"""


def _metadata_end(data: bytes) -> int:
    """Where the names of the tensors begin, roughly: behind it lie weights."""
    return data.index(b"output_norm.weight") + 2000


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One damaged copy."""
    changed = bytearray(data)
    end = _metadata_end(data)
    kind = rng.randrange(7)
    if kind == 0:  # flipped bytes
        for _ in range(rng.randrange(1, 12)):
            changed[rng.randrange(4, end)] ^= 1 << rng.randrange(8)
    elif kind == 1:  # cut short
        del changed[rng.randrange(len(changed)) :]
    elif kind == 2:  # a count of the header
        at = rng.choice((8, 16))
        struct.pack_into("<Q", changed, at, rng.choice((0, 1, 1 << 20, 1 << 31, 1 << 63)))
    elif kind == 3:  # a length or a count somewhere, e.g. in front of a key
        name = rng.choice((b"general.name", b"llama.", b"tokenizer.ggml.", b"blk.", b"weight"))
        at = rng.choice([i for i in range(24, end) if changed.startswith(name, i)][:400])
        huge = rng.choice((0, 1 << 16, 1 << 32, 1 << 63, (1 << 64) - 1, rng.getrandbits(64)))
        struct.pack_into("<Q", changed, at - 8, huge)
    elif kind == 4:  # an array that holds something else, or arrays, or more
        at = changed.index(b"tokenizer.ggml.", rng.randrange(24, end // 2))
        at += struct.unpack_from("<Q", changed, at - 8)[0] % 64
        struct.pack_into("<I", changed, at, 9)
        struct.pack_into("<I", changed, at + 4, rng.choice((9, 8, 10, 0, 255)))
        struct.pack_into("<Q", changed, at + 8, rng.choice((1, 8192, 1 << 30, 1 << 62)))
    elif kind == 5:  # names that are no text
        at = changed.index(rng.choice((b"general.", b"blk.", b"tokenizer.")))
        changed[at : at + 4] = bytes(rng.randrange(128, 256) for _ in range(4))
    else:  # noise
        at = rng.randrange(24, end - 64)
        changed[at : at + 64] = rng.randbytes(64)
    return bytes(changed)


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
