"""What an outlook keeps of its candidates, against trying every possible tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from localspec.planning.prediction import Guess
from localspec.planning.verification_costs import Costs

from localspec.decoding.distribution import Distribution
from localspec.decoding.tree import ROOT, TokenTree
from localspec.planning.draft_tree import Outlook
from localspec.planning.pair_profile import PairProfile
from tests.planning.measuring import SHAPES, TILES, UNIT, profile_of

MOST = 7
FILLER = 99
CERTAIN = Distribution.certain(0)


def outlook_of(
    knowledge: PairProfile,
    *,
    rate: float = 1.0 / UNIT,
    most: int = MOST,
    leaves: int = 16,
    drawn: bool = False,
    pass_seconds: float = 0.05 * UNIT,
    onward: float = 0.75,
    guesses: Sequence[Guess] = (),
) -> Outlook:
    return Outlook(
        knowledge,
        Costs(knowledge, 0, MOST),
        rate=rate,
        pass_seconds=pass_seconds,
        most=most,
        leaves=leaves,
        drawn=drawn,
        guesses=guesses,
        streak=0,
        onward=onward,
    )


def grow(outlook: Outlook, rng: np.random.Generator, count: int) -> None:
    """Random candidates; what is left for a sibling is what its elders leave."""
    left: dict[int, float] = {}
    for token in range(count):
        parent = int(rng.integers(ROOT, len(outlook.candidates)))
        chance = float(rng.uniform(0.05, 0.95))
        remaining = left.get(parent, 1.0)
        outlook.add(token, parent, "model", "", (), left=remaining, chance=chance)
        left[parent] = remaining * (1.0 - chance)


def closed_sets(outlook: Outlook, count: int) -> Iterator[list[int]]:
    """Every choice of candidates that holds the parent of each."""
    for chosen in product((False, True), repeat=count):
        kept = [number for number in range(count) if chosen[number]]
        if all(outlook.candidates[number].parent in (ROOT, *kept) for number in kept):
            yield kept


def worth(outlook: Outlook, kept: Sequence[int], seconds: Sequence[float], rate: float) -> float:
    reached = sum(outlook.candidates[number].reach for number in kept)
    return 1.0 + reached - rate * seconds[len(kept) + 1]


def true_seconds(knowledge: PairProfile) -> list[float]:
    """T(n) with localspec's own work, as it is paid."""
    row = [
        knowledge.target.seconds(n, 0) + knowledge.step_overhead + (n - 1) * knowledge.row_overhead
        for n in range(1, MOST + 2)
    ]
    return [0.0, *row]


def least_seconds(knowledge: PairProfile) -> list[float]:
    """The same where free slots are filled with anything."""
    row = true_seconds(knowledge)
    return [0.0, *(min(row[n:]) for n in range(1, len(row)))]


def leaf_count(outlook: Outlook) -> int:
    parents = {outlook.candidates[number].parent for number in outlook.kept}
    return sum(number not in parents for number in outlook.kept)


def check_closed(outlook: Outlook) -> None:
    for number in outlook.kept:
        assert outlook.candidates[number].parent in (ROOT, *outlook.kept)
    assert outlook.kept == sorted(outlook.kept)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", [0.6, 1.0, 1.7])
def test_nothing_is_worth_more_than_what_is_kept(shape: str, rate: float) -> None:
    rate /= UNIT
    for seed in range(40):
        rng = np.random.default_rng([seed, 7])
        knowledge = profile_of(SHAPES[shape])
        outlook = outlook_of(knowledge, rate=rate)
        count = int(rng.integers(0, 8))
        grow(outlook, rng, count)
        seconds = least_seconds(knowledge)
        best = max(worth(outlook, kept, seconds, rate) for kept in closed_sets(outlook, count))
        predicted = outlook.value()
        outlook.settle(FILLER)
        check_closed(outlook)
        assert worth(outlook, outlook.kept, seconds, rate) == pytest.approx(best, abs=1e-9)
        assert predicted == pytest.approx(best, abs=1e-9)
        assert outlook.tokens - rate * outlook.seconds == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("rate", [0.6, 1.0, 1.7])
def test_nothing_random_costs_make_is_worth_more(rate: float) -> None:
    rate /= UNIT
    for seed in range(60):
        rng = np.random.default_rng([seed, 8])
        knowledge = profile_of(
            (np.cumsum(rng.uniform(-0.6, 1.0, MOST + 1)).clip(0.2) + 1.0).tolist()
        )
        outlook = outlook_of(knowledge, rate=rate)
        grow(outlook, rng, 7)
        seconds = least_seconds(knowledge)
        best = max(worth(outlook, kept, seconds, rate) for kept in closed_sets(outlook, 7))
        outlook.settle(FILLER)
        check_closed(outlook)
        assert worth(outlook, outlook.kept, seconds, rate) == pytest.approx(best, abs=1e-9)


def test_free_slots_are_filled() -> None:
    """No pass has a size at which a larger one costs less: with real candidates as far as there
    are any, else with the filler."""
    knowledge = profile_of(TILES)
    seconds = true_seconds(knowledge)
    sizes = set()
    for seed in range(100):
        rng = np.random.default_rng([seed, 9])
        outlook = outlook_of(knowledge, rate=(0.5 if seed % 2 else 1.0) / UNIT)
        count = int(rng.integers(1, 8))
        grow(outlook, rng, count)
        outlook.settle(FILLER)
        check_closed(outlook)
        size = 1 + len(outlook.kept)
        sizes.add(size)
        assert seconds[size] == min(seconds[size:])
        assert outlook.seconds == pytest.approx(seconds[size])
        fillers = [n for n in outlook.kept if outlook.candidates[n].token == FILLER]
        assert not fillers or set(range(count)) <= set(outlook.kept), "real ones come first"
    assert sizes == {1, 4, 8}


@pytest.mark.parametrize("drawn", [False, True])
def test_single_candidate_makes_a_pass_over_four(drawn: bool) -> None:
    outlook = outlook_of(profile_of(TILES), drawn=drawn)
    outlook.add(1, ROOT, "model", "", (), chance=0.95, proposal=CERTAIN if drawn else None)
    outlook.settle(FILLER)
    tree = TokenTree()
    outlook.plant(tree)
    assert tree.tokens == [1, FILLER, FILLER]
    assert tree.is_chain()
    assert outlook.chances == {0: 0.95, 1: 0.0, 2: 0.0}
    assert tree.proposals[1:] == [None, None]


@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_drawn_is_verified(shape: str) -> None:
    """However poor: to drop it for what it is would bias the text."""
    for seed in range(60):
        rng = np.random.default_rng([seed, 10])
        knowledge = profile_of(SHAPES[shape])
        outlook = outlook_of(knowledge, drawn=True)
        drawn, further = int(rng.integers(0, 5)), int(rng.integers(0, 3))
        parent = ROOT
        for token in range(drawn + further):
            parent = outlook.add(
                token,
                parent,
                "model",
                "",
                (),
                chance=float(rng.uniform(0.01, 0.9)),
                proposal=CERTAIN if token < drawn else None,
            )
        outlook.settle(FILLER)
        assert outlook.kept == list(range(len(outlook.kept))), "a chain, in the order it was made"
        assert len(outlook.kept) >= drawn
        seconds = least_seconds(knowledge)
        best = max(
            worth(outlook, range(n), seconds, 1.0 / UNIT) for n in range(drawn, drawn + further + 1)
        )
        found = worth(outlook, outlook.kept, seconds, 1.0 / UNIT)
        assert found == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("leaves", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_no_more_branches_than_fit(leaves: int, shape: str) -> None:
    most = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, 11])
        outlook = outlook_of(profile_of(SHAPES[shape]), leaves=leaves, rate=0.4 / UNIT)
        grow(outlook, rng, 9)
        outlook.settle(FILLER)
        check_closed(outlook)
        assert leaf_count(outlook) <= leaves
        most = max(most, leaf_count(outlook))
    assert most == leaves


@pytest.mark.parametrize("leaves", [1, 2, 3])
def test_free_slots_are_filled_where_branches_do_not_fit(leaves: int) -> None:
    knowledge = profile_of(TILES)
    seconds = true_seconds(knowledge)
    for seed in range(100):
        outlook = outlook_of(knowledge, leaves=leaves)
        grow(outlook, np.random.default_rng([seed, 12]), 9)
        outlook.settle(FILLER)
        size = 1 + len(outlook.kept)
        assert seconds[size] == min(seconds[size:])


@pytest.mark.parametrize("most", [1, 2, 4])
def test_no_more_tokens_than_asked_for(most: int) -> None:
    for drawn in (False, True):
        for seed in range(50):
            outlook = outlook_of(profile_of(TILES), most=most, drawn=drawn)
            grow(outlook, np.random.default_rng([seed, 13]), 6)
            outlook.settle(FILLER)
            assert len(outlook.kept) <= most


def test_end_token_adds_nothing() -> None:
    """Behind it the target's own token is lost: accepting it is as good as not drafting it."""
    outlook = outlook_of(profile_of(SHAPES["flat"]))
    outlook.add(2, ROOT, "model", "", (), chance=0.99, ends=True)
    outlook.settle(FILLER)
    assert outlook.kept == []
    assert outlook.tokens == 1.0
    outlook = outlook_of(profile_of(SHAPES["flat"]))
    first = outlook.add(1, ROOT, "model", "", (), chance=0.9)
    outlook.add(2, first, "model", "", (), chance=0.99, ends=True)
    outlook.settle(FILLER)
    assert outlook.kept == [first]
    assert outlook.tokens == pytest.approx(1.9)


def test_reach_is_the_chance_of_the_path_and_of_no_elder_sibling() -> None:
    outlook = outlook_of(profile_of(SHAPES["flat"]))
    first = outlook.add(1, ROOT, "model", "", (), chance=0.5)
    second = outlook.add(2, first, "model", "", (), chance=0.4)
    beside = outlook.add(3, first, "model", "", (), chance=0.5, left=0.6)
    reaches = [outlook.candidates[number].reach for number in (first, second, beside)]
    assert reaches == pytest.approx([0.5, 0.2, 0.15])
    assert [outlook.candidates[n].depth for n in (first, second, beside)] == [1, 2, 2]


def test_chance_is_asked_for_where_it_is_not_given() -> None:
    knowledge = profile_of(SHAPES["flat"])
    outlook = outlook_of(knowledge)
    features = (1.0, 0.3, 0.5, -1.0)
    number = outlook.add(1, ROOT, "model", "model", features)
    assert outlook.candidates[number].chance == knowledge.chances["model"].predict(features)


def test_guesses_are_hung_on_as_far_as_they_are_likely() -> None:
    knowledge = profile_of(SHAPES["flat"])
    outlook = outlook_of(knowledge)
    guesses = [Guess(token, 6 + token, 1, 1) for token in range(6)]
    outlook.extend_with_guesses(ROOT, guesses, "ngram", 4)
    assert [c.token for c in outlook.candidates] == list(range(len(outlook.candidates)))
    assert [c.parent for c in outlook.candidates] == list(range(-1, len(outlook.candidates) - 1))
    chances = knowledge.chances["ngram"]
    reach = 1.0
    for n, candidate in enumerate(outlook.candidates):
        reach *= chances.predict(guesses[n].features(4 + n))
        assert candidate.reach == pytest.approx(reach)
    poor = outlook_of(knowledge)
    poor.extend_with_guesses(ROOT, [Guess(1, 1, 1, 500)] * 9, "ngram", 0)
    assert len(poor.candidates) < 9


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
    outlook = outlook_of(profile_of(SHAPES[shape]), pass_seconds=pass_cost * UNIT, onward=onward)
    outlook.tip = outlook.add(1, ROOT, "model", "", (), chance=0.9)
    assert outlook.worth_a_pass() is pays


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
    outlook = outlook_of(profile_of(SHAPES[shape]), drawn=True)
    assert outlook.worth_drawing(chance) is pays


def test_gain_is_over_what_goes_without_the_draft_model() -> None:
    outlook = outlook_of(profile_of(SHAPES["flat"]), pass_seconds=0.1 * UNIT)
    outlook.plain = 1.0 - 1.0 / UNIT * least_seconds(profile_of(SHAPES["flat"]))[1]
    first = outlook.add(1, ROOT, "model", "", (), chance=0.9)
    outlook.add(2, first, "model", "", (), chance=0.5)
    outlook.sizes = [1, 1]
    outlook.settle(FILLER)
    assert outlook.kept == [0, 1]
    assert outlook.gain() == pytest.approx(0.9 + 0.45 - 0.1 - 0.02, abs=0.02)
    outlook.sizes = [1]
    assert outlook.gain() == pytest.approx(0.9 + 0.45 - 0.02, abs=0.02)


@pytest.mark.parametrize(("chance", "gains"), [(0.9, True), (0.02, False)])
def test_prospect_of_a_first_token(chance: float, gains: bool) -> None:
    outlook = outlook_of(profile_of(SHAPES["steep"]))
    assert (outlook.prospect(chance) > 0.0) is gains
    assert outlook_of(profile_of(SHAPES["ruinous"])).prospect(chance) == 0.0


@pytest.mark.parametrize("shape", SHAPES)
def test_costs_say_the_least_and_the_size_that_has_it(shape: str) -> None:
    knowledge = profile_of(SHAPES[shape])
    costs, row = Costs(knowledge, 0, MOST), true_seconds(knowledge)
    assert costs.least[1:] == pytest.approx(least_seconds(knowledge)[1:])
    for n in range(1, MOST + 2):
        assert row[costs.size[n]] == pytest.approx(costs.least[n])
        assert costs.size[n] >= n
    if shape == "tiles":
        assert costs.size[1:] == [1, 4, 4, 4, 5, 8, 8, 8]
