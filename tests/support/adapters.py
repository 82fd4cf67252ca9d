"""LoRA adapters of small random matrices for a model's tensors."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from localspec.gguf.reader import read_gguf
from tests.support.gguf_files import write_gguf

RANK = 4


def lora(
    path: Path,
    base: Path,
    *,
    ending: str = "ffn_down.weight",
    rank: int = RANK,
    gain: float = 0.3,
    alpha: float = RANK,
    more: Mapping[str, tuple[int, ...]] | None = None,
    without: str = "",
    architecture: str | None = None,
    kind: str = "lora",
) -> Path:
    """Write an adapter of a model and return its path. `more`: shapes of further tensors, of zeros;
    `without`: how names end that are left out."""
    file = read_gguf(base)
    random = np.random.default_rng(0)
    found = {}
    for tensor in file.tensors:
        if tensor.name.endswith(ending):
            columns, rows = tensor.shape
            found[f"{tensor.name}.lora_a"] = random.normal(0, columns**-0.5, (rank, columns))
            found[f"{tensor.name}.lora_b"] = random.normal(0, gain, (rows, rank))
    found |= {name: np.zeros(shape) for name, shape in (more or {}).items()}
    kept = {
        name: matrix.astype(np.float32)
        for name, matrix in found.items()
        if not (without and name.endswith(without))
    }
    keys = {"general.type": "adapter", "adapter.type": kind, "adapter.lora.alpha": float(alpha)}
    return write_gguf(path, architecture or file.architecture, keys, kept)
