"""Datastores of many sizes: what they take on disk, in memory, to build, and to be asked.

    python -m tools.retrieval --tokens 1e6 1e7

The text is made up: token ids by Zipf's law, and a third of it stretches that came before, as in
code. A query is what a step asks: the longest ending and what followed, behind places of the text
(which are found at length) and behind made-up ones (which are not). Every size is built and asked
in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from localspec.retrieval import manifest as manifests
from localspec.retrieval.datastore import LONGEST, Datastore
from localspec.retrieval.learning import LearnedVocabulary, learn

VOCABULARY = 49_152
QUERIES = 2_000
PIECE = 2_000
"""Tokens of a text."""


def text(count: int) -> npt.NDArray[np.int32]:
    """Made-up tokens."""
    random = np.random.default_rng(1)
    tokens = (random.zipf(1.2, count) % VOCABULARY).astype(np.int32)
    for start in range(PIECE, count - 64, 192):
        source = int(random.integers(0, start - 64))
        tokens[start : start + 64] = tokens[source : source + 64]
    return tokens


def measured(count: int, segments: int) -> dict[str, float]:
    """Build and ask a datastore of so many tokens, learned in so many parts."""
    facts = LearnedVocabulary("0" * 24, VOCABULARY, "made up")
    tokens = text(count)
    began = time.perf_counter()
    for number, part in enumerate(np.array_split(tokens, segments)):
        pieces: list[Any] = np.array_split(part, max(1, len(part) // PIECE))
        learn(facts, {f"part {number}": pieces})
    built = time.perf_counter() - began
    folder = manifests.root() / facts.fingerprint
    datastore = Datastore(lambda: facts.fingerprint, facts.size)
    before = _own_memory()
    datastore.refresh()
    snapshot = datastore.now
    random = np.random.default_rng(2)
    found, made_up = [], []
    for start in random.integers(LONGEST, count - LONGEST, QUERIES):
        found.append(tokens[start - LONGEST : start].tolist())
        made_up.append((random.zipf(1.2, LONGEST) % VOCABULARY).tolist())
    seconds = {}
    for name, endings in (("found", found), ("made up", made_up)):
        for _ in range(2):  # the first time reads the file
            times = []
            for ending in endings:
                start = time.perf_counter()
                first = next(snapshot.longest(ending), None)
                if first is not None:
                    first.followers()
                times.append(time.perf_counter() - start)
        seconds[name] = float(np.median(times)), float(np.quantile(times, 0.99))
    return {
        "tokens": count,
        "segments": len(snapshot.segments),
        "build_s": built,
        "peak_building_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "bytes_a_token": sum(f.stat().st_size for f in folder.glob("*.segment")) / count,
        "asking_mib": (_own_memory() - before) / 2**20,
        "found_ms": 1e3 * seconds["found"][0],
        "found_p99_ms": 1e3 * seconds["found"][1],
        "made_up_ms": 1e3 * seconds["made up"][0],
        "made_up_p99_ms": 1e3 * seconds["made up"][1],
    }


def _own_memory() -> int:
    """Bytes of this process that are not a mapped file's."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--parts", type=int, default=1, help="times of learning")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one, asked.parts)))
        return
    for count in asked.tokens:
        with tempfile.TemporaryDirectory() as home:
            command = [sys.executable, "-m", "tools.retrieval", "--one", str(int(count))]
            subprocess.run(
                [*command, "--parts", str(asked.parts)],
                env=os.environ | {"LOCALSPEC_HOME": home},
                check=True,
            )


if __name__ == "__main__":
    main()
