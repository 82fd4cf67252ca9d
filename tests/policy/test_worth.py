"""What is verified of a step's candidates, against trying every possible tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from localspec.decoding.distribution import Distribution
from localspec.decoding.tree import ROOT
from localspec.policy.worth import DraftValue
from localspec.policy.profile import PairProfile
from localspec.policy.plan import AUTO, AdaptivePlan, Candidate
from tests.policy.measuring import SHAPES, TILES, UNIT, profile_of

MOST = 7
CERTAIN = Distribution.certain(0)


class Choice:
    """Candidates, and what is made of them.

    Attributes:
        kept, padding: what `settle` selected.
        tokens: expected of that.
    """

    def __init__(self, value: DraftValue) -> None:
        self.value = value
        self.candidates: list[Candidate] = []
        self.kept: list[int] = []
        self.padding = 0

    def add(
        self,
        token: int,
        parent: int,
        chance: float,
        *,
        left: float = 1.0,
        proposal: Distribution | None = None,
    ) -> int:
        above = 1.0 if parent == ROOT else self.candidates[parent].reach
        depth = 1 if parent == ROOT else self.candidates[parent].depth + 1
        reach = above * left * chance
        self.candidates.append(
            Candidate(token, parent, depth, "any", None, (), chance, reach, proposal, False)
        )
        return len(self.candidates) - 1

    @property
    def reaches(self) -> list[float]:
        return [candidate.reach for candidate in self.candidates]

    def settle(self) -> None:
        self.kept, self.padding = self.value.select(self.candidates)

    @property
    def size(self) -> int:
        """Tokens of the pass that verifies it."""
        return 1 + len(self.kept) + self.padding

    @property
    def tokens(self) -> float:
        return 1.0 + sum(self.candidates[number].reach for number in self.kept)


def choice_of(
    profile: PairProfile,
    *,
    rate: float = 1.0 / UNIT,
    most: int = MOST,
    leaves: int = 16,
    drawn: bool = False,
    onward: float = 0.75,
) -> Choice:
    plan = AdaptivePlan(
        AUTO,
        most,
        costs=profile.verification_costs(0, MOST),
        rate=rate,
        leaves=leaves,
        drawn=drawn,
        onward=onward,
    )
    return Choice(DraftValue(plan))


def grow(choice: Choice, rng: np.random.Generator, count: int) -> None:
    """Random candidates; what is left for a sibling is what its elders leave."""
    left: dict[int, float] = {}
    for token in range(count):
        parent = int(rng.integers(ROOT, len(choice.candidates)))
        chance = float(rng.uniform(0.05, 0.95))
        remaining = left.get(parent, 1.0)
        choice.add(token, parent, chance, left=remaining)
        left[parent] = remaining * (1.0 - chance)


def closed_sets(choice: Choice, count: int) -> Iterator[list[int]]:
    """Every choice of candidates that holds the parent of each."""
    for chosen in product((False, True), repeat=count):
        kept = [number for number in range(count) if chosen[number]]
        if all(choice.candidates[number].parent in (ROOT, *kept) for number in kept):
            yield kept


def worth(choice: Choice, kept: Sequence[int], seconds: Sequence[float], rate: float) -> float:
    reached = sum(choice.candidates[number].reach for number in kept)
    return 1.0 + reached - rate * seconds[len(kept) + 1]


def true_seconds(profile: PairProfile) -> list[float]:
    """T(n) with localspec's own work, as it is paid."""
    row = [
        profile.target.seconds(n, 0) + profile.step_overhead + (n - 1) * profile.row_overhead
        for n in range(1, MOST + 2)
    ]
    return [0.0, *row]


def least_seconds(profile: PairProfile) -> list[float]:
    """The same where free slots are filled with anything."""
    row = true_seconds(profile)
    return [0.0, *(min(row[n:]) for n in range(1, len(row)))]


def leaf_count(choice: Choice) -> int:
    parents = {choice.candidates[number].parent for number in choice.kept}
    return sum(number not in parents for number in choice.kept)


def check_closed(choice: Choice) -> None:
    for number in choice.kept:
        assert choice.candidates[number].parent in (ROOT, *choice.kept)
    assert choice.kept == sorted(choice.kept)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", [0.6, 1.0, 1.7])
def test_nothing_is_worth_more_than_what_is_kept(shape: str, rate: float) -> None:
    rate /= UNIT
    for seed in range(40):
        rng = np.random.default_rng([seed, 7])
        profile = profile_of(SHAPES[shape])
        choice = choice_of(profile, rate=rate)
        count = int(rng.integers(0, 8))
        grow(choice, rng, count)
        seconds = least_seconds(profile)
        best = max(worth(choice, kept, seconds, rate) for kept in closed_sets(choice, count))
        predicted = choice.value.of(choice.reaches)
        choice.settle()
        check_closed(choice)
        assert worth(choice, choice.kept, seconds, rate) == pytest.approx(best, abs=1e-9)
        assert predicted == pytest.approx(best, abs=1e-9)
        assert choice.tokens - rate * seconds[choice.size] == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("rate", [0.6, 1.0, 1.7])
def test_nothing_random_costs_make_is_worth_more(rate: float) -> None:
    rate /= UNIT
    for seed in range(60):
        rng = np.random.default_rng([seed, 8])
        profile = profile_of((np.cumsum(rng.uniform(-0.6, 1.0, MOST + 1)).clip(0.2) + 1.0).tolist())
        choice = choice_of(profile, rate=rate)
        grow(choice, rng, 7)
        seconds = least_seconds(profile)
        best = max(worth(choice, kept, seconds, rate) for kept in closed_sets(choice, 7))
        choice.settle()
        check_closed(choice)
        assert worth(choice, choice.kept, seconds, rate) == pytest.approx(best, abs=1e-9)


def test_free_slots_are_filled() -> None:
    """No pass has a size at which a larger one costs less: with real candidates as far as there
    are any, else with the filler."""
    profile = profile_of(TILES)
    seconds = true_seconds(profile)
    sizes = set()
    for seed in range(100):
        rng = np.random.default_rng([seed, 9])
        choice = choice_of(profile, rate=(0.5 if seed % 2 else 1.0) / UNIT)
        count = int(rng.integers(1, 8))
        grow(choice, rng, count)
        choice.settle()
        check_closed(choice)
        size = choice.size
        sizes.add(size)
        assert seconds[size] == min(seconds[size:])
        assert not choice.padding or set(range(count)) == set(choice.kept), "real ones come first"
    assert sizes == {1, 4, 8}


@pytest.mark.parametrize("drawn", [False, True])
def test_single_candidate_makes_a_pass_over_four(drawn: bool) -> None:
    choice = choice_of(profile_of(TILES), drawn=drawn)
    choice.add(1, ROOT, 0.95, proposal=CERTAIN if drawn else None)
    choice.settle()
    assert (choice.kept, choice.padding) == ([0], 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_drawn_is_verified(shape: str) -> None:
    """However poor: to drop it for what it is would bias the text."""
    for seed in range(60):
        rng = np.random.default_rng([seed, 10])
        profile = profile_of(SHAPES[shape])
        choice = choice_of(profile, drawn=True)
        drawn, further = int(rng.integers(0, 5)), int(rng.integers(0, 3))
        parent = ROOT
        for token in range(drawn + further):
            parent = choice.add(
                token,
                parent,
                float(rng.uniform(0.01, 0.9)),
                proposal=CERTAIN if token < drawn else None,
            )
        choice.settle()
        assert choice.kept == list(range(len(choice.kept))), "a chain, in the order it was made"
        assert len(choice.kept) >= drawn
        seconds = least_seconds(profile)
        best = max(
            worth(choice, range(n), seconds, 1.0 / UNIT) for n in range(drawn, drawn + further + 1)
        )
        found = worth(choice, choice.kept, seconds, 1.0 / UNIT)
        assert found == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_no_more_branches_than_fit(leaves: int, shape: str) -> None:
    most = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, 11])
        choice = choice_of(profile_of(SHAPES[shape]), leaves=leaves, rate=0.4 / UNIT)
        grow(choice, rng, 9)
        choice.settle()
        check_closed(choice)
        assert leaf_count(choice) <= leaves
        most = max(most, leaf_count(choice))
    assert most == leaves


@pytest.mark.parametrize("leaves", [1, 2, 3])
def test_free_slots_are_filled_where_branches_do_not_fit(leaves: int) -> None:
    profile = profile_of(TILES)
    seconds = true_seconds(profile)
    for seed in range(100):
        choice = choice_of(profile, leaves=leaves)
        grow(choice, np.random.default_rng([seed, 12]), 9)
        choice.settle()
        assert seconds[choice.size] == min(seconds[choice.size :])


@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_more_tokens_than_asked_for(most: int) -> None:
    for drawn in (False, True):
        for seed in range(50):
            choice = choice_of(profile_of(TILES), most=most, drawn=drawn)
            grow(choice, np.random.default_rng([seed, 13]), 6)
            choice.settle()
            assert choice.size <= 1 + most


@pytest.mark.parametrize(
    ("shape", "pass_cost", "onward", "pays"),
    [
        ("flat", 0.05, 0.75, True),
        ("flat", 0.9, 0.75, False),
        ("flat", 0.05, 0.01, False),
        ("ruinous", 0.05, 0.75, False),
        ("tiles", 0.05, 0.9, True),
    ],
)
def test_further_pass_of_the_draft_model_is_taken_where_it_pays(
    shape: str, pass_cost: float, onward: float, pays: bool
) -> None:
    choice = choice_of(profile_of(SHAPES[shape]), onward=onward)
    choice.add(1, ROOT, 0.9)
    value, now = choice.value, choice.value.of(choice.reaches)
    assert value.grows(now, choice.reaches, (), 0.9, pass_cost, MOST - 1) is pays


@pytest.mark.parametrize(
    ("shape", "chance", "pays"),
    [
        ("flat", 0.3, True),
        ("flat", 0.005, False),
        ("ruinous", 0.9, False),
        ("steep", 0.8, True),
        ("steep", 0.2, False),
        ("tiles", 0.9, True),
        ("tiles", 0.1, False),
    ],
)
def test_token_is_drawn_where_it_is_likely_enough_to_pay(
    shape: str, chance: float, pays: bool
) -> None:
    value = choice_of(profile_of(SHAPES[shape]), drawn=True).value
    stop = value.of(())
    draws = value.of((), (chance,)) > stop or value.grows(stop, (), (chance,), chance, 0.05, MOST)
    assert draws is pays


@pytest.mark.parametrize(("chance", "gains"), [(0.9, True), (0.02, False)])
def test_prospect_of_a_first_token(chance: float, gains: bool) -> None:
    assert (
        choice_of(profile_of(SHAPES["steep"])).value.prospect(chance, 0.75, 0.05) > 0.0
    ) is gains
    assert choice_of(profile_of(SHAPES["ruinous"])).value.prospect(chance, 0.75, 0.05) == 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_costs_say_the_least_and_the_size_that_has_it(shape: str) -> None:
    profile = profile_of(SHAPES[shape])
    costs, row = profile.verification_costs(0, MOST), true_seconds(profile)
    assert costs.least[1:] == pytest.approx(least_seconds(profile)[1:])
    for n in range(1, MOST + 2):
        assert row[costs.size[n]] == pytest.approx(costs.least[n])
        assert costs.size[n] >= n
    if shape == "tiles":
        assert costs.size[1:] == (1, 4, 4, 4, 5, 8, 8, 8)
