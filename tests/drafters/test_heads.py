"""Trained heads as sources, over toy models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from localspec.decoding.interfaces import Step
from localspec.decoding.sampling import Row
from localspec.drafters.composition import sources
from localspec.drafters.medusa import MedusaCache, MedusaWeights
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.drafters.trained_head import EagleHead, TrainedHead
from localspec.policy.profile import PairProfile
from tests.decoding.exact import DRAFT, EXACT, MODEL
from tests.drafters.composed import TEXT, gap_and_drafts, steps_of
from tests.policy.measuring import SHAPES, curve, profile_of
from tests.support.toy_heads import ToyStates, toy_head
from tests.support.toys import ToyModel, with_start

LIKE = with_start([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.1, 0.6]])
SOURCES = ["eagle", "medusa", "dflash"]
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"depth": 2, "rule": "block"},
    "tree": {"depth": 2, "width": 2, "rule": "token"},
    "auto": {"drafter": "auto"},
}


def priced(parts: Parts, price: float = 0.05) -> PairProfile:
    """A profile; passes of the head cost `price` passes of the target."""
    profile = profile_of(SHAPES["flat"], None)
    for source in sources(parts)[1]:
        profile.source(source).costs = curve((price,) * 8)
    return profile


@pytest.mark.parametrize("draft", [DRAFT, LIKE], ids=["unlike", "like"])
@pytest.mark.parametrize(
    ("name", "way"),
    [
        # Medusa draws a token for every place of a tree, and so has many outcomes.
        pytest.param(name, way, marks=[pytest.mark.nightly] if name + way == "medusatree" else [])
        for name in SOURCES
        for way in WAYS
    ],
)
def test_sampled_text_is_the_targets(name: str, way: str, draft: ToyModel) -> None:
    """The toy head checks the positions of its states."""
    chosen = Drafting(**{"drafter": name, **WAYS[way]})
    gap, drafted = gap_and_drafts(
        chosen, lambda: Parts(head=toy_head(name, draft)), name, profiled=priced
    )
    assert gap < EXACT
    assert drafted > 10


def answer(
    head: TrainedHead,
    drafting: Drafting,
    prompt: Sequence[int] = TEXT,
    count: int = 30,
    **cost: Any,
) -> list[Step]:
    parts = Parts(head=head)
    return steps_of(drafting, parts, priced(parts, **cost), MODEL, prompt, count)


@pytest.mark.parametrize("name", SOURCES)
def test_auto_uses_a_head_only_if_it_pays(name: str) -> None:
    steps = answer(toy_head(name, MODEL), Drafting(), count=40)
    assert sum(step.sources.count(name) for step in steps) > 10
    expensive = answer(toy_head(name, MODEL), Drafting(), count=40, price=5.0)
    assert sum(step.sources.count(name) for step in expensive) == 0


def test_accepted_tokens_are_read_again_with_the_targets_states() -> None:
    """The states of every token are read exactly once."""
    head = toy_head("eagle", MODEL)
    assert isinstance(head, EagleHead)
    cache = head.cache
    assert isinstance(cache, ToyStates)
    steps = answer(head, Drafting(drafter="eagle", depth=3, width=2))
    assert sum(step.accepted for step in steps) > 15
    committed = len(TEXT) + 30
    assert cache.states_read == committed - 1, "the last token has no state yet"
    # The next answer begins like this one.
    text = [*TEXT, *(token for step in steps for token in step.tokens)]
    more = answer(head, Drafting(drafter="eagle", depth=3), text, count=10)
    assert sum(step.accepted for step in more) > 4


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
