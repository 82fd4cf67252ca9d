"""Estimated chances of acceptance: learning, priors and bounds."""

import numpy as np
import numpy.typing as npt
import pytest

from localspec.drafters.ngram import PRIORS
from localspec.policy.acceptance_estimator import HIGHEST, LOWEST, AcceptanceEstimator

Features = npt.NDArray[np.float64]
TRUE = (-0.4, 1.2, -0.8)


def sample(count: int, seed: int) -> tuple[list[list[float]], Features]:
    """Features with a leading 1, and the true chance of each row."""
    features = np.column_stack(
        [np.ones(count), np.random.default_rng(seed).normal(size=(count, 2))]
    )
    return features.tolist(), 1.0 / (1.0 + np.exp(-features @ np.array(TRUE)))


@pytest.mark.parametrize("seed", range(5))
def test_known_function_is_learned(seed: int) -> None:
    """The bias of a conversation depends on chance, so held-back data begin a new one."""
    estimator = AcceptanceEstimator((0.0, 0.0, 0.0))
    features, truth = sample(3000, seed)
    for row, accepted in zip(
        features, np.random.default_rng(seed + 100).random(3000) < truth, strict=True
    ):
        estimator.learn(row, bool(accepted))
    estimator.begin()
    held_back, truth = sample(20_000, seed + 200)
    predicted = np.array([estimator.predict(row) for row in held_back])
    assert np.abs(predicted - truth).mean() < 0.03


def test_later_evidence_still_counts() -> None:
    """Old evidence is replaced by new evidence, fastest within a conversation."""
    estimator = AcceptanceEstimator((0.0,))
    rng = np.random.default_rng(0)
    for p in (0.9, 0.2):
        for hit in (rng.random(6000) < p).tolist():
            estimator.learn((1.0,), hit)
        assert estimator.predict((1.0,)) == pytest.approx(p, abs=0.1)
    estimator.begin()
    assert estimator.predict((1.0,)) < 0.55


@pytest.mark.parametrize("weight", [-1e6, -9.0, 0.0, 9.0, 1e6])
def test_predictions_are_bounded(weight: float) -> None:
    estimator = AcceptanceEstimator((weight,))
    assert LOWEST <= estimator.predict((1.0,)) <= HIGHEST
    for accepted in (True, False):
        for _ in range(500):
            estimator.learn((1.0,), accepted)
            assert LOWEST <= estimator.predict((1.0,)) <= HIGHEST
    assert 0.0 < LOWEST < HIGHEST < 1.0


@pytest.mark.parametrize(
    "features",
    [(1.0, 5.0, 3.4, 5.0), (1.0, 0.0, -1.0, 0.0), (1.0, 1.0, 1.0, 1.0)],
    ids=["long copy", "poor", "even"],
)
def test_uniform_evidence_does_not_change_other_predictions(features: tuple[float, ...]) -> None:
    """After ten sessions of copying, predictions for other features change little."""
    estimator = AcceptanceEstimator(PRIORS["greedy"])
    other = (1.0, 2.0, 0.5, 1.0)
    rng = np.random.default_rng(7)
    for hit in (rng.random(20_000) < 0.9).tolist():
        estimator.learn(features, hit)
    assert estimator.predict(features) == pytest.approx(0.9, abs=0.1)
    for _ in range(3):
        estimator.learn(other, False)
        estimator.learn(other, True)
    estimator.begin()
    assert np.isfinite(estimator.weights).all()
    assert np.abs(estimator.weights).max() < 20.0
    assert np.linalg.eigvalsh(np.array(estimator.variance)).min() > -1e-9, "no longer a variance"
    assert 0.02 < estimator.predict(other) < 0.98
    assert estimator.predict(features) == pytest.approx(0.9, abs=0.15)


def test_rounding_errors_do_not_grow() -> None:
    """Forgetting would amplify rounding errors to the size of the variance."""
    estimator = AcceptanceEstimator(PRIORS["greedy"])
    rng = np.random.default_rng(3)
    seen = np.column_stack([np.ones(3), rng.uniform(0.0, 4.0, (3, 3))])
    which = rng.integers(3, size=100_000).tolist()
    hits = (rng.random(100_000) < 0.6).tolist()
    for number, hit in zip(which, hits, strict=True):
        estimator.learn(seen[number].tolist(), hit)
    variance = np.array(estimator.variance)
    assert (variance == variance.T).all()
    assert np.linalg.eigvalsh(variance).min() > 0.0
    estimator.begin()
    for features in seen.tolist():
        assert estimator.predict(features) == pytest.approx(0.6, abs=0.1)
