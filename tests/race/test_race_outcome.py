"""What came of a race."""

from __future__ import annotations

import json

from localspec import SamplingParams
from localspec.race.race_outcome import Parting, Proof, decided_by_logits, parting
from tests.race.laps import outcome


def test_parting() -> None:
    names = {1: b"one", 2: b"two", 3: b"three"}.__getitem__
    assert parting([1, 2, 3], [1, 2, 3], names) is None
    assert parting([1, 2, 3], [1, 2], names) is None
    assert parting([1, 2, 3], [1, 3, 3], names) == Parting(1, "two", "three")


def test_the_greatest_logit_decides_where_nothing_is_added_to_it() -> None:
    assert decided_by_logits(SamplingParams(temperature=0.0))
    for said in ({"temperature": 0.8}, {"repeat_penalty": 1.1}, {"logit_bias": {1: 2.0}}):
        assert not decided_by_logits(SamplingParams(**{"temperature": 0.0, **said}))  # type: ignore[arg-type]


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
