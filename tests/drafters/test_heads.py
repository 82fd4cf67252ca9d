"""Trained heads as sources, over toy models."""

from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from localspec.decoding.sampling import Row
from localspec.drafters.composition import sources
from localspec.drafters.medusa import MedusaCache, MedusaWeights
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from tests.decoding.exact import MODEL
from tests.drafters.composed import TEXT, steps_of
from tests.policy.measuring import SHAPES, curve, profile_of
from tests.support.toy_heads import toy_head

SOURCES = ["eagle", "medusa", "dflash"]


@pytest.mark.parametrize("name", SOURCES)
def test_auto_uses_a_head_only_if_it_pays(name: str) -> None:
    def drafted(price: float) -> int:
        parts, profile = Parts(head=toy_head(name, MODEL)), profile_of(SHAPES["flat"], None)
        for source in sources(parts)[1]:
            profile.source(source).costs = curve((price,) * 8)
        steps = steps_of(Drafting(), parts, profile, MODEL, TEXT, 40)
        return sum(step.sources.count(name) for step in steps)

    assert drafted(0.05) > 10
    assert drafted(5.0) == 0


def test_medusa_head_follows_the_paper() -> None:
    """x + silu(W x + b), block by block, then the projection; with tokens left out and without."""
    random = np.random.default_rng(5)
    w, u, o = (
        random.standard_normal(shape).astype(np.float32) for shape in [(6, 6), (6, 6), (3, 6)]
    )
    b, h = random.standard_normal((2, 6)).astype(np.float32)
    weights = MedusaWeights(Path("x"), "x", 0, [[(w, b), (u, None)]], [o], np.array([4, 0, 2]))
    x = h.astype(np.float64)
    for weight, bias in ((w, b), (u, 0.0)):
        z = weight @ x + bias
        x = x + z / (1 + np.exp(-z))
    assert np.allclose(weights.logits(0, h), o @ x, atol=1e-4)


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_one_thread_computes_medusa_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads would keep spinning during the target's next pass."""
    width, tokens = 8, 12
    block, output = np.eye(width, dtype=np.float32), np.ones((tokens, width), np.float32)
    weights = MedusaWeights(Path("x"), "x", 0, [[(block, None)]], [output], None)
    before, during = blas_threads(), []
    if before in ([], [1]):
        pytest.skip("numpy's matrix products know one thread here")
    logits = MedusaWeights.logits

    def watched(self: MedusaWeights, head: int, state: Row) -> Row:
        during.append(blas_threads())
        return logits(self, head, state)

    monkeypatch.setattr(MedusaWeights, "logits", watched)
    heads = MedusaCache(weights, tokens, 64)
    heads.set_state(3, np.ones(width, np.float32))
    assert heads.row(0) == pytest.approx(width * (1.0 + 1.0 / (1.0 + np.exp(-1.0))))
    assert during == [[1] * len(before)]
    assert blas_threads() == before, "the number is restored"
