"""What came of a race."""

from __future__ import annotations

import json

import pytest

from localspec import SamplingParams
from localspec.race.outcome import Parting, Proof, decided_by_logits, parting
from tests.race.laps import outcome


def test_parting() -> None:
    names = {1: b"one", 2: b"two", 3: b"three"}.__getitem__
    assert parting([1, 2, 3], [1, 2, 3], names, None) is None
    assert parting([1, 2, 3], [1, 2], names, None) is None
    found = parting([1, 2, 3], [1, 3, 3], names, lambda at: at / 10)
    assert found == Parting(1, "two", "three", 0.1)
    assert found.near_tie


@pytest.mark.parametrize(("moves", "near"), [(0.3, False), (0.7, False), (0.9, True)])
def test_a_gap_that_is_not_small_is_measured_by_what_rounding_moves_there(
    moves: float, near: bool
) -> None:
    asked = []

    def rounding(at: int) -> float:
        asked.append(at)
        return moves

    name = str.encode
    found = parting([1, 2], [1, 3], lambda n: name(str(n)), lambda _: 0.8, rounding)
    assert found == Parting(1, "2", "3", 0.8, moves)
    assert found.near_tie == near
    found = parting([1, 2], [1, 3], lambda n: name(str(n)), lambda _: 0.4, rounding)
    assert found == Parting(1, "2", "3", 0.4)
    assert asked == [1], "reading the text again takes a while"


def test_the_greatest_logit_decides_where_nothing_is_added_to_it() -> None:
    assert decided_by_logits(SamplingParams(temperature=0.0))
    for said in ({"temperature": 0.8}, {"repeat_penalty": 1.1}, {"logit_bias": {1: 2.0}}):
        assert not decided_by_logits(SamplingParams(**{"temperature": 0.0, **said}))  # type: ignore[arg-type]


def test_as_json() -> None:
    found = json.loads(json.dumps(outcome(parting=Parting(7, "a", "b", 0.25)).as_dict()))
    assert found["speed_up"] == 2.0
    assert found["lead_seconds"] == 2.0
    assert found["equal"] is False
    assert (found["plain"], found["proof"]) == ("localspec without drafts", None)
    proved = outcome(stock=True, proof=Proof(None)).as_dict()
    assert (proved["plain"], proved["proof"]) == (
        "llama.cpp",
        {"bit_for_bit": True, "wrong": None},
    )
    assert found["parting"] == {
        "position": 7,
        "plain": "a",
        "localspec": "b",
        "logit_gap": 0.25,
        "rounding": None,
    }
    assert found["lanes"]["plain"]["tokens"] == 100
    assert found["lanes"]["localspec"]["stats"]["target_passes"] == 40
