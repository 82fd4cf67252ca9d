"""Which answers make up a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WINDOW = 64
"""Batches whose answers are sorted by length among one another, against padding."""


def epoch(lengths: Sequence[int], most: int, seed: int, number: int) -> list[list[int]]:
    """Every answer once, as batches of indices into `lengths`; the same seed gives the same ones. A
    batch has at most `most` tokens, padding included; a longer answer is a batch alone."""
    random = np.random.Generator(np.random.PCG64([seed, number]))
    order = random.permutation(len(lengths))
    mean = max(1.0, float(np.mean(lengths))) if len(lengths) else 1.0
    window = max(1, int(WINDOW * most / mean))
    found: list[list[int]] = []
    for start in range(0, len(order), window):
        here = sorted(order[start : start + window].tolist(), key=lambda i: (lengths[i], i))
        batch: list[int] = []
        for index in here:
            if batch and lengths[index] * (len(batch) + 1) > most:
                found.append(batch)
                batch = []
            batch.append(index)
        if batch:
            found.append(batch)
    return [found[i] for i in random.permutation(len(found))]
