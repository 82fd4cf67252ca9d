"""Traces of random answers."""

from pathlib import Path

import numpy as np

from localspec.distill.recording import top_tokens
from localspec.distill.trace import Trace, TraceHeader, TraceRecord

HEADER = TraceHeader("toy.gguf", "0" * 16, "f" * 24, 97, 4)


def answer(number: int, *, held_back: bool = False, header: TraceHeader = HEADER) -> TraceRecord:
    """An answer by a learnable rule, with sharp distributions."""
    random = np.random.Generator(np.random.PCG64(number))
    length = int(random.integers(4, 20))
    tokens = (int(random.integers(40)) + 3 * np.arange(length + 3)) % 97
    rows = random.normal(size=(length, header.size)).astype(np.float32)
    rows[np.arange(length), tokens[3:]] += 4 + np.log(header.size)
    key = number.to_bytes(16, "little")
    return TraceRecord(key, tokens[:3], tokens[3:], *top_tokens(rows, header.k), held_back)


def trace_of(path: Path, count: int, header: TraceHeader = HEADER) -> None:
    """A trace, every eighth answer of which is held back."""
    with Trace(path, header) as trace:
        for number in range(count):
            trace.append(answer(number, held_back=number % 8 == 7, header=header))
