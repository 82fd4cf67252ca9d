"""Stored profiles, and files that cannot be read or written."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from localspec.drafters.composition import sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.ngram import NgramIndex, NgramSource
from localspec.drafters.registry import Parts
from localspec.policy import store as module
from localspec.policy.profile import PairProfile
from localspec.policy.store import LATELY, ProfileStore
from tests.support.toys import ToyCache, with_start

pytestmark = pytest.mark.usefixtures("home")

IDENTITY: dict[str, Any] = {"machine": {"cores": 2}, "models": ["a.gguf"], "threads": [2, None]}


def parts() -> Parts:
    return Parts(DraftModel(ToyCache(with_start([1, 1, 1])), 4))


SOURCES = [source for kind in sources(parts()) for source in kind]


def learned_profile() -> PairProfile:
    """A profile without default values."""
    profile = PairProfile()
    profile.target.learn({1: 0.02, 4: 0.03, 8: 0.05}, 0)
    profile.target.learn({1: 0.03, 4: 0.05}, 1024)
    for source in SOURCES:
        known = profile.source(source)
        known.costs.learn({1: 0.002}, 0)
        known.gain.learn(0.5)
        known.record_savings(-3.0, 40)
        for kind, prior in source.priors.items():
            for accepted in (True, True, False):
                features = [1.0, *([0.5] * (len(prior) - 1))]
                known.estimators[kind].learn(features, accepted)
    profile.begin()
    profile.said += 30
    profile.record_overhead(5e-5, 0)
    profile.record_overhead(5e-4, 3)
    return profile


def test_stored_profile_is_restored() -> None:
    profile, again = learned_profile(), PairProfile()
    assert not ProfileStore(IDENTITY).load(again)
    ProfileStore(IDENTITY).save(profile)
    assert again.as_dict() != profile.as_dict()
    assert ProfileStore(IDENTITY).load(again)
    assert again.as_dict() == profile.as_dict(), "also before a source uses it"
    for source in SOURCES:
        assert asdict(again.source(source)) == asdict(profile.source(source))
    assert again.target.seconds(2, 0) == profile.target.seconds(2, 0)
    assert again.usual_length == 30.0


def test_missing_source_keeps_its_stored_profile() -> None:
    """For example, sessions without a draft model keep its stored profile."""
    ProfileStore(IDENTITY).save(learned_profile())
    without = PairProfile()
    assert ProfileStore(IDENTITY).load(without)
    for source in SOURCES[:1]:
        without.source(source).gain.learn(2.0)
    ProfileStore(IDENTITY).save(without)
    again = PairProfile()
    assert ProfileStore(IDENTITY).load(again)
    known, wanted = again.source(SOURCES[-1]), learned_profile().source(SOURCES[-1])
    assert asdict(known) == asdict(wanted)
    assert asdict(again.source(SOURCES[0])) == asdict(without.source(SOURCES[0]))


class _Changed(NgramSource):
    priors: Mapping[str, tuple[float, ...]] = {**NgramSource.priors, "greedy": (0.1, 0.2)}


def test_estimator_with_other_features_is_reset() -> None:
    """The rest of its source's profile stays."""
    ProfileStore(IDENTITY).save(learned_profile())
    source, profile = _Changed(NgramIndex()), PairProfile()
    assert ProfileStore(IDENTITY).load(profile)
    known = profile.source(source)
    assert known.estimators["greedy"].weights == [0.1, 0.2]
    assert known.estimators["sampled"].weights != [*NgramSource.priors["sampled"]]
    assert known.gain.mean == learned_profile().source(SOURCES[0]).gain.mean


def test_file_of_another_identity_is_not_used() -> None:
    ProfileStore(IDENTITY).save(learned_profile())
    foreign = ProfileStore(IDENTITY | {"threads": [7, None]})
    ProfileStore(IDENTITY).path.rename(foreign.path)
    profile = PairProfile()
    assert not foreign.load(profile)
    assert not profile.target


def test_other_format_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    ProfileStore(IDENTITY).save(learned_profile())
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    assert not ProfileStore(IDENTITY).load(PairProfile())


def edited(place: str, value: object) -> Callable[[str], str]:
    *above, last = place.split(".")

    def edit(text: str) -> str:
        record: dict[str, Any] = json.loads(text)
        reduce(getitem, above, record["profile"])[last] = value
        return json.dumps(record)

    return edit


NAN = float("nan")
BROKEN: dict[str, Callable[[str], str]] = {
    "empty": lambda text: "",
    "cut": lambda text: text[: len(text) // 2],
    "no object": lambda text: "[1, 2]",
    "no profile": lambda text: json.dumps({"identity": json.loads(text)["identity"]}),
    "profile is a number": lambda text: text.replace('"profile": {', '"profile": 1, "k": {', 1),
    "target is a list": edited("target", [1]),
    "no time": edited("target.sizes.1", 0.0),
    "nan time": edited("sources.model.costs.sizes.1", NAN),
    "a source is a number": edited("sources.model", 1),
    "other features": edited("sources.model.estimators.greedy.weights", [1.0]),
    "nan weight": edited("sources.model.estimators.greedy.weights", [NAN] * 4),
    "no budget": lambda text: text.replace('"budget"', '"other"'),
    "nan fund": edited("budget.fund", NAN),
    "no gain": edited("sources.model.gain", None),
    "asked less than never": edited("sources.model.gain", {"mean": 1.0, "count": -5}),
    "negative overhead": edited("row_overhead", -1.0),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_file_is_replaced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = ProfileStore(IDENTITY)
    kept.save(learned_profile())
    text = BROKEN[kind](kept.path.read_text(encoding="utf-8"))
    kept.path.write_text(text, encoding="utf-8")
    profile = PairProfile()
    with caplog.at_level(logging.WARNING, "localspec.policy.store"):
        assert not ProfileStore(IDENTITY).load(profile)
    assert profile.as_dict() == PairProfile().as_dict(), "all of it or nothing"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(kept.path) in caplog.text
    kept.save(learned_profile())
    assert ProfileStore(IDENTITY).load(profile)


def test_folder_in_place_of_the_file_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    kept = ProfileStore(IDENTITY)
    kept.path.mkdir(parents=True)
    assert not kept.load(PairProfile())
    kept.save(learned_profile())
    kept.remove()
    assert len(caplog.records) == 3
    assert list(kept.path.parent.iterdir()) == [kept.path], "nothing half written is left"


def test_unwritable_folder_only_warns(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "cache").write_text("in the way", encoding="utf-8")
    kept = ProfileStore(IDENTITY)
    kept.save(learned_profile())
    assert "cannot be kept" in caplog.text
    assert not kept.load(PairProfile())
    kept.remove()


@pytest.mark.parametrize(
    ("fund", "later", "found"),
    [
        (-0.2, 10.0, -0.2),
        (-0.2, LATELY + 10.0, 0.0),
        (-0.2, -LATELY - 10.0, 0.0),
        (0.2, LATELY + 10.0, 0.2),
    ],
)
def test_debt_is_cancelled_after_some_minutes(fund: float, later: float, found: float) -> None:
    """Also if the clock was set back. Gains stay."""
    profile, again = learned_profile(), PairProfile()
    profile.budget.fund = fund
    ProfileStore(IDENTITY, now=lambda: 1e6).save(profile)
    assert ProfileStore(IDENTITY, now=lambda: 1e6 + later).load(again)
    assert again.budget.fund == found
