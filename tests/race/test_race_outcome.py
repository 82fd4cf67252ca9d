"""What came of a race."""

from __future__ import annotations

import json

import pytest

from localspec.race.race_outcome import Parting, Proof, figures, parting, summary
from tests.race.laps import lane, outcome


def test_parting() -> None:
    names = {1: b"one", 2: b"two", 3: b"three"}.__getitem__
    assert parting([1, 2, 3], [1, 2, 3], names) is None
    assert parting([1, 2, 3], [1, 2], names) is None
    assert parting([1, 2, 3], [1, 3, 3], names) == Parting(1, "two", "three")


def test_as_json() -> None:
    found = json.loads(json.dumps(outcome(parting=Parting(7, "a", "b")).as_dict()))
    assert found["speed_up"] == 2.0
    assert found["lead_seconds"] == 2.0
    assert found["equal"] is False
    assert (found["plain"], found["proof"]) == ("localspec without drafts", None)
    proved = outcome(stock=True, proof=Proof(None)).as_dict()
    assert (proved["plain"], proved["proof"]) == ("llama.cpp", {"bit_for_bit": True, "wrong": None})
    assert found["parting"] == {"position": 7, "plain": "a", "localspec": "b"}
    assert found["lanes"]["plain"]["tokens"] == 100
    assert found["lanes"]["localspec"]["stats"]["target_passes"] == 40


PARTED = Parting(7, " a", " the")


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            {},
            "plain 4.00 s, 25.0 tok/s · localspec 2.00 s, 50.0 tok/s · 2.00 times as fast, "
            "2.00 s sooner · 2.50 tokens/pass · same text, 100 tokens",
        ),
        ({"localspec": lane(50, 2.0), "greedy": False}, "1.00 times the tokens per second · "),
        ({"parting": PARTED}, "differ after 7 tokens: “a” or “the” · rounding can do that; local"),
        ({"stock": True, "proof": Proof(None)}, "plain (llama.cpp) 4.00 s, 25.0 tok/s · localspec"),
        (
            {"stock": True, "parting": PARTED, "proof": Proof(None)},
            "“the” · each token is the same without drafts, bit for bit",
        ),
        ({"proof": Proof(6)}, "token 7 differs from the answer without drafts; please report it"),
        ({"greedy": False, "parting": PARTED}, "sampled, so the texts differ"),
        ({"greedy": False}, "sampled, and yet the same 100 tokens"),
        (
            {"plain": lane(10, 1.0, "cancelled")},
            "interrupted · plain 1.00 s, 10.0 tok/s · ",
        ),
        ({"plain": lane(10, 1.0, "cancelled")}, "same text, 10 tokens so far"),
        (
            {"plain": lane(0, 0.0, "cancelled"), "localspec": lane(0, 0.0)},
            "interrupted · plain no token yet · localspec no token yet",
        ),
    ],
)
def test_the_line_of_figures(other: dict[str, object], told: str) -> None:
    assert told in figures(outcome(**other))


def test_several_questions_have_a_line_each_and_one_of_all() -> None:
    """100 tokens in 4 and in 2 seconds, then 100 in 8 and in 1."""
    second = outcome(plain=lane(100, 8.0, target_passes=100), localspec=lane(100, 1.0))
    first, other, every = summary([outcome(), second], 1.44).splitlines()
    assert first == f"1: {figures(outcome())}"
    assert other.startswith(
        "2: plain 8.00 s, 12.5 tok/s · localspec 1.00 s, 100 tok/s · 8.00 times"
    )
    assert every == (
        "all: plain 12.00 s, 16.7 tok/s · localspec 3.00 s, 66.7 tok/s · 4.00 times as fast · "
        "measured before, once: 1.4 s"
    )
    assert summary([outcome()], 0.0) == figures(outcome())
    beside = outcome(stock=True)
    assert "\nall: plain (llama.cpp) 8.00 s" in summary([beside, beside], 0.0)
