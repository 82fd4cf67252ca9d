"""The candidates of one step: who is below whom, and how likely each is."""

from __future__ import annotations

import pytest

from localspec.decoding.auto_sources import Prediction
from localspec.decoding.tree import ROOT
from localspec.policy.acceptance_estimator import AcceptanceEstimator, logit
from localspec.policy.candidates import LEAST_REACH, Candidates

BELIEVES = AcceptanceEstimator((0.0, 1.0))
"""Says the chance whose logit is the second feature."""


def put(
    candidates: Candidates, token: int, parent: int, chance: float, *, ends: bool = False
) -> int:
    return candidates.add(token, parent, "toy", None, (), chance, ends=ends)


def expects(*chain: tuple[int, float]) -> list[Prediction]:
    return [Prediction(token, (1.0, logit(chance))) for token, chance in chain]


def test_a_candidate_is_reached_if_its_parent_is_and_its_elder_siblings_are_not() -> None:
    candidates = Candidates()
    first = put(candidates, 7, ROOT, 0.5)
    second = put(candidates, 8, ROOT, 0.4)
    below = put(candidates, 9, second, 0.5)
    assert [first, second, below] == [0, 1, 2]
    reaches = [candidate.reach for candidate in candidates.all]
    assert reaches == pytest.approx([0.5, 0.2, 0.1])
    assert candidates.reaches == sorted(reaches)
    assert [candidates.depth(node) for node in (ROOT, first, second, below)] == [0, 1, 1, 2]
    assert candidates.children == {ROOT: [first, second], second: [below]}
    assert candidates.path(below) == [8, 9]
    assert candidates.path(ROOT) == []
    assert candidates.child(ROOT, 8) == second
    assert candidates.child(ROOT, 9) is None
    assert candidates.child(below, 9) is None


def test_nothing_is_gained_by_a_token_that_ends_the_answer() -> None:
    candidates = Candidates()
    end = put(candidates, 7, ROOT, 0.5, ends=True)
    assert candidates.reach(end) == 0.0
    other = put(candidates, 8, ROOT, 0.5)
    assert candidates.reach(other) == pytest.approx(0.25), "it may come all the same"
    assert candidates.likeliest([end, other], 5) == [other]


def test_the_likeliest_come_first_and_the_elder_one_among_equals() -> None:
    candidates = Candidates()
    a = put(candidates, 1, ROOT, 0.25)
    b = put(candidates, 2, ROOT, 0.5)
    c = put(candidates, 3, a, 0.5)
    d = put(candidates, 4, b, 1.0)
    assert candidates.likeliest([a, b, c, d], 3) == [b, d, a, c]
    assert candidates.likeliest([d, b, a], 2) == [b, a], "so deep, and no deeper"


def test_what_is_looked_up_hangs_as_far_as_it_is_likely_enough() -> None:
    candidates = Candidates()
    there = put(candidates, 1, ROOT, 0.5)
    chain = expects((1, 0.9), (2, 0.5), (3, 0.5), (4, 2 * LEAST_REACH), (5, 0.9))
    candidates.hang(chain, ROOT, "book", BELIEVES)
    assert [(c.token, c.parent, c.source) for c in candidates.all] == [
        (1, ROOT, "toy"),
        (2, there, "book"),
        (3, 1, "book"),
    ]
    assert candidates.reach(2) == pytest.approx(0.125)
    assert candidates.all[2].estimator is BELIEVES
