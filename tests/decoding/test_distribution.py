"""Sparse distributions against dense arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.distribution import Distribution, Probabilities
from tests.support.toys import examples

SIZE = 8

sparse = (
    st.dictionaries(st.integers(0, SIZE - 1), st.integers(0, 5), min_size=1)
    .filter(lambda weights: any(weights.values()))
    .map(
        lambda weights: Distribution.normalised(
            np.array(sorted(weights), np.int32),
            np.array([weights[token] for token in sorted(weights)], np.float64),
        )
    )
)
"""Some of the tokens left, some of those without probability."""


def dense(distribution: Distribution) -> Probabilities:
    full = np.zeros(SIZE)
    full[distribution.ids] = distribution.probs
    return full


@examples(50)
@given(p=sparse)
def test_probabilities_are_looked_up_by_token(p: Distribution) -> None:
    full = dense(p)
    assert [p.prob(token) for token in range(SIZE)] == full.tolist()
    ids = np.arange(SIZE, dtype=np.int32)
    assert p.at(ids).tolist() == full.tolist()
    assert p.at(ids[::-1][:3]).tolist() == full[::-1][:3].tolist()
    assert p.prob(SIZE + 100) == 0.0


@examples(50)
@given(p=sparse, token=st.integers(0, SIZE - 1))
def test_without_a_token_the_others_share_its_mass(p: Distribution, token: int) -> None:
    rest = dense(p)
    rest[token] = 0.0
    found = p.without(token)
    if rest.sum() == 0.0:
        assert found is None
    else:
        assert found is not None
        assert dense(found) == pytest.approx(rest / rest.sum())


@examples(100)
@given(p=sparse, q=sparse, scale=st.sampled_from([1.0, 0.5, 0.1]))
def test_residual_is_the_surplus_of_p_over_q(
    p: Distribution, q: Distribution, scale: float
) -> None:
    surplus = np.maximum(scale * dense(p) - dense(q), 0.0)
    weights, total = p.excess(q, scale)
    assert weights == pytest.approx(surplus[p.ids])
    assert total == pytest.approx(surplus.sum())
    if total > 1e-9:
        assert dense(p.residual(q, scale)) == pytest.approx(surplus / surplus.sum())


def test_residual_of_equal_distributions_is_the_distribution_itself() -> None:
    p = Distribution.normalised(np.array([1, 4], np.int32), np.array([1.0, 2.0]))
    same = Distribution(p.ids.copy(), p.probs.copy())
    assert p.residual(same) is p


def test_certain_distribution_has_all_mass_on_one_token() -> None:
    p = Distribution.certain(5)
    assert (p.prob(5), p.prob(4)) == (1.0, 0.0)
    assert p.without(5) is None
    assert p.without(4) is not None
