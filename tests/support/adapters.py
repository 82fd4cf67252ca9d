"""LoRA adapters that nobody trained: small random matrices for a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from localspec.gguf.reader import read_gguf
from tests.support.gguf_files import written

RANK = 4


def lora(
    path: Path,
    base: Path,
    *,
    ending: str = "ffn_down.weight",
    rank: int = RANK,
    gain: float = 0.3,
    alpha: float = RANK,
    seed: int = 0,
    more: Mapping[str, tuple[int, int]] | None = None,
    without: str = "",
    architecture: str | None = None,
    kind: str = "lora",
) -> Path:
    """Write an adapter of a model and return its path."""
    file = read_gguf(base)
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture or file.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", kind)
    writer.add_float32("adapter.lora.alpha", alpha)
    for tensor in file.tensors:
        if tensor.name.endswith(ending):
            columns, rows = tensor.shape
            matrices = {
                f"{tensor.name}.lora_a": random.normal(0, columns**-0.5, (rank, columns)),
                f"{tensor.name}.lora_b": random.normal(0, gain, (rows, rank)),
            }
            for name, matrix in matrices.items():
                if not (without and name.endswith(without)):
                    writer.add_tensor(name, matrix.astype(np.float32))
    for name, shape in (more or {}).items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    return written(writer, path)
