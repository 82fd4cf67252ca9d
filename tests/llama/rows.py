"""Rows of logits, and how far those may lie apart that are the same but for rounding."""

from __future__ import annotations

import numpy as np

from localspec.decoding.sampling import Rows
from localspec.llama.batch import PassPart
from localspec.llama.context import Context
from localspec.llama.shared_context import SharedContext

NOISE = 0.3
"""Logits of other kernels and cell orders differ by a tenth with 8-bit activations (a product of
floats differs from llama.cpp's as much); rows of another context differ by several units."""


def fresh(reference: Context, text: list[int]) -> Rows:
    reference.clear()
    row: Rows = reference.extend(text)[-1].copy()
    return row


def distance(a: Rows, b: Rows) -> float:
    return float(np.abs(a - b).max())


def seats(shared: SharedContext) -> list[Context]:
    """One for each answer, whose passes are not shared."""

    def passes(part: PassPart) -> tuple[Rows, float]:
        return shared.decode([part])[0], 0.0

    return [
        Context.of(shared, shared.lot(n), passes, lambda: shared.batch)
        for n in range(shared.answers)
    ]
