"""Traces of random answers."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax

from localspec.distill.trace import Trace, TraceHeader, TraceRecord

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.float32]

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


def top_tokens(rows: Rows, k: int) -> tuple[Array, Array, Array]:
    """Of logits [n, vocabulary]: ids [n, k], falling; log p [n, k]; what is left of p [n]."""
    log_p = log_softmax(rows, axis=1)
    ids = np.argsort(-log_p, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(log_p, ids, 1)
    return ids, found, np.maximum(0.0, 1.0 - np.exp(found).sum(1))
