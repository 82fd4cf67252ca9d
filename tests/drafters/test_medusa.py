"""Medusa heads in numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from localspec.decoding.sampling import Row
from localspec.drafters.medusa import MedusaCache, MedusaWeights

WIDTH, TOKENS = 8, 12


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_one_thread_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others would go on spinning beside the target's next pass."""
    weights = MedusaWeights(
        path=Path("heads.gguf"),
        name="heads",
        size=0,
        blocks=[[(np.eye(WIDTH, dtype=np.float32), None)]],
        outputs=[np.ones((TOKENS, WIDTH), np.float32)],
        ids=None,
    )
    before, during = blas_threads(), []
    if before in ([], [1]):
        pytest.skip("numpy's matrix products know one thread here")
    logits = MedusaWeights.logits

    def watched(self: MedusaWeights, head: int, state: Row) -> Row:
        during.append(blas_threads())
        return logits(self, head, state)

    monkeypatch.setattr(MedusaWeights, "logits", watched)
    heads = MedusaCache(weights, TOKENS, 64)
    heads.know(3, np.ones(WIDTH, np.float32))
    assert heads.row(0) == pytest.approx(WIDTH * (1.0 + 1.0 / (1.0 + np.exp(-1.0))))
    assert during == [[1] * len(before)]
    assert blas_threads() == before, "others compute as they did"
