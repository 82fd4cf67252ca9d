"""Fitting what estimators start from: known weights come back, pairs weigh the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

import localspec
from localspec.drafters import model, ngram
from localspec.policy.acceptance_estimator import AcceptanceEstimator
from tools.fit_priors import Position, fit, load_prompts, log_loss, trace, usual_chances

TRUE = (-0.4, 1.2, -0.8)


def positions(count: int, seed: int, weights: tuple[float, ...] = TRUE) -> list[Position]:
    rng = np.random.default_rng(seed)
    features = [(1.0, *rng.normal(size=2).tolist()) for _ in range(count)]
    estimator = AcceptanceEstimator(weights)
    return [Position(one, estimator.predict(one)) for one in features]


def test_fitting_finds_the_weights_behind_the_chances() -> None:
    assert fit([positions(2000, 1)]) == pytest.approx(TRUE, abs=0.03)


def test_pair_with_more_positions_weighs_no_more() -> None:
    """Two pairs that are right 0.2 and 0.8 of the time, one with ten times as many positions."""
    many, few = [Position((1.0,), 0.2)] * 5000, [Position((1.0,), 0.8)] * 500
    assert fit([many, few]) == pytest.approx([0.0], abs=0.01)


def test_log_loss_is_that_of_the_estimator() -> None:
    told = [Position((1.0,), 1.0), Position((1.0,), 0.0), Position((1.0,), 0.5)]
    assert log_loss((0.0,), told) == pytest.approx(math.log(2.0))
    assert log_loss((9.0,), told[1:2]) == pytest.approx(-math.log(0.005)), "kept in bounds"


def test_halves_of_a_set_are_apart_and_together_all_of_it() -> None:
    halves = [{p.id for p in load_prompts(f"stories:{half}", 99)} for half in ("even", "odd")]
    assert not halves[0] & halves[1]
    assert halves[0] | halves[1] == {p.id for p in load_prompts("stories", 99)}
    assert len(load_prompts("stories:odd", 2)) == 14


def test_trace_has_features_of_every_kind_as_the_priors_want_them() -> None:
    with localspec.load("demo", draft="demo") as engine:
        found = trace(engine, load_prompts("stories:even", 1)[:4], 0.8, 24)
    priors = {f"model {kind}": prior for kind, prior in model.PRIORS.items()}
    priors |= {f"ngram {kind}": prior for kind, prior in ngram.PRIORS.items()}
    assert found.keys() == priors.keys()
    for kind, prior in priors.items():
        assert {len(one.features) for one in found[kind]} == {len(prior)}
        assert all(0.0 <= one.right <= 1.0 + 1e-9 for one in found[kind])
    assert {one.right for one in found["model greedy"]} == {0.0, 1.0}
    chances = usual_chances(model.PRIORS["greedy"], [found])
    assert sorted(chances) == list(chances)
