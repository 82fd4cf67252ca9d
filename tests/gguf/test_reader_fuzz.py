"""200 damaged files: each is read, or refused in a sentence, in a second and 200 MB.

In a process of its own, whose address space is bounded, so that a crash or a runaway allocation is
the test's failure and not its end.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gguf.mutations import mutate

pytestmark = pytest.mark.nightly

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
