"""How often a draft would be accepted, from rows of a text that both models read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from localspec.llama.context import Context
from localspec.llama.context_params import MAX_TREE
from localspec.llama.model import Model
from localspec.llama.options import ModelOptions
from localspec.pairing.agreement import PLACES, UNSURE, acceptances, overlap

OPTIONS = ModelOptions(context=64, threads=1, gpu_layers=0)


def rows(*chances: list[float]) -> np.ndarray:
    return np.array(chances, dtype=np.float32)


def test_overlap_by_hand() -> None:
    one = rows([0.5, 0.3, 0.2], [1.0, 0.0, 0.0])
    assert overlap(one, one) == pytest.approx([1.0, 1.0])
    assert overlap(one, rows([0.2, 0.3, 0.5], [0.0, 1.0, 0.0])) == pytest.approx([0.7, 0.0])
    # What only one of them has, the other one never says.
    assert overlap(one, rows([0.4, 0.3, 0.1, 0.2], [0.5, 0.5, 0.0, 0.0])) == pytest.approx(
        [0.8, 0.5]
    )


def test_overlap_is_how_often_rejection_sampling_accepts() -> None:
    """Leviathan et al. 2023, theorem 3.5, counted."""
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(8), 2).astype(np.float32)
    drawn = rng.choice(8, 200_000, p=q / q.sum(dtype=np.float64))
    accepted = rng.random(drawn.size) < p[drawn] / q[drawn]
    (chance,) = overlap(p[None], q[None])
    error = np.sqrt(chance * (1 - chance) / drawn.size)
    assert abs(accepted.mean() - chance) < 4 * error


def test_a_pass_has_room_for_the_rows() -> None:
    assert UNSURE + PLACES <= MAX_TREE


def test_models_that_read(target_path: Path, draft_path: Path) -> None:
    with (
        Model(target_path, OPTIONS) as model,
        Model(draft_path, OPTIONS) as draft,
        closing(Context(model, OPTIONS)) as target,
        closing(Context(model, OPTIONS)) as itself,
        closing(Context(draft, OPTIONS)) as other,
    ):
        found = acceptances(target, [itself, other])
        assert found.shape == (2, 4 * PLACES)
        assert found[0] == pytest.approx(1.0, abs=1e-4)
        assert (found >= 0).all()
        assert (found <= 1 + 1e-4).all()
        assert 0.3 < found[1].mean() < 0.99
        assert target.tokens == itself.tokens == other.tokens == []
        # A draft's figures do not depend on what is compared beside it.
        assert acceptances(target, [other])[0] == pytest.approx(found[1], abs=1e-4)
