"""Sparse distributions against dense arithmetic, and the random sources that draw from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.distribution import Distribution, Probabilities
from tests.support.toys import EnumeratingSource, enumerate_outcomes, examples, expectation

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


def test_enumerating_source_walks_through_every_outcome_once() -> None:
    p = Distribution.normalised(np.array([0, 1, 2], np.int32), np.array([1.0, 0.0, 3.0]))
    seen: list[tuple[bool, int]] = []

    def run(random: EnumeratingSource) -> tuple[bool, int]:
        outcome = random.coin(0.25, 0, 0), random.draw(p, 0)
        seen.append(outcome)
        return outcome

    found = enumerate_outcomes(run)
    assert found == {
        (True, 0): 0.0625,
        (True, 2): 0.1875,
        (False, 0): 0.1875,
        (False, 2): 0.5625,
    }
    assert len(seen) == 4, "the token without probability is left out"


def test_enumerating_source_follows_programs_that_ask_differently_each_time() -> None:
    def tosses(random: EnumeratingSource) -> int:
        """Until heads, three times at most."""
        return next((i for i in range(3) if random.coin(0.5, i, 0)), 3)

    assert enumerate_outcomes(tosses) == {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.125}
    assert expectation(tosses) == 0.875
    assert enumerate_outcomes(lambda random: random.coin(1.7, 0, 0)) == {True: 1.0}


def test_enumerating_source_takes_no_two_decisions_at_one_place() -> None:
    p = Distribution.normalised(np.array([0, 1], np.int32), np.array([1.0, 1.0]))
    with pytest.raises(AssertionError, match="decides twice"):
        enumerate_outcomes(lambda random: (random.draw(p, 3), random.draw(p, 3)))
