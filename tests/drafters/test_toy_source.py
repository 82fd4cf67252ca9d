"""A new source needs one file (`tests/support/phrases.py`), one registration and one test.

It then works in `auto`, by name, in statistics, in the colours of the screen and in benchmarks.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec import Drafting, Engine
from localspec.bench.arms import localspec_arms
from localspec.decoding.interfaces import Step
from localspec.drafters.composition import sources
from localspec.drafters.registry import REGISTRY, Parts, Registration
from localspec.tui.rendering.palette import Palette
from tests.decoding.exact import EXACT
from tests.drafters.composed import counting, gap_and_drafts
from tests.support import phrases as phrases_file
from tests.support.asking import PLAIN, ask
from tests.support.phrases import PhraseSource
from tests.support.sessions import make_drafts_cheap


@pytest.fixture
def phrases(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The phrases of the registered source, to be filled."""
    known: list[list[int]] = []
    monkeypatch.setitem(REGISTRY, "phrases", Registration(lambda parts: PhraseSource(known)))
    return known


def accepted(steps: Sequence[Step]) -> int:
    return sum(step.sources.count("phrases") for step in steps)


def test_source_is_one_short_file(phrases: list[list[int]]) -> None:
    assert len(Path(phrases_file.__file__).read_text().splitlines()) <= 40
    lookups, _ = sources(Parts())
    assert {source.name for source in lookups} == {"ngram", "grammar", "phrases"}


@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_auto_uses_the_source_where_it_pays(phrases: list[list[int]], shape: str) -> None:
    phrases.append(list(range(50, 100)))
    steps, _ = counting(Drafting(), Parts(), shape)
    inside = [step for step in steps if 55 <= step.context_length < 95]
    assert accepted(inside) > 25
    assert len(inside) < 20, "of forty tokens"
    assert not any(step.drafted for step in steps if step.context_length < 45), "it knows nothing"


def test_auto_drops_the_source_where_it_does_not_pay(phrases: list[list[int]]) -> None:
    """Either all drafts are wrong, or passes cost too much for right drafts."""
    phrases.extend([token, 0] for token in range(200))
    steps, _ = counting(Drafting(), Parts())
    assert sum(step.drafted for step in steps[:30]) > 0, "it was trusted at first"
    assert sum(step.drafted for step in steps[60:]) == 0
    assert all(step.why_not_drafted for step in steps[60:])
    phrases[:] = [list(range(50, 100))]
    assert accepted(counting(Drafting(), Parts(), "ruinous")[0]) == 0


def test_profile_of_the_source_is_stored_under_its_name(phrases: list[list[int]]) -> None:
    phrases.append(list(range(50, 100)))
    _, profile = counting(Drafting(), Parts())
    known = profile.as_dict()["sources"]["phrases"]
    assert known["estimators"]["phrase"]["weights"] != [0.5]


@pytest.mark.parametrize("name", ["auto", "phrases"])
def test_sampled_text_is_the_targets(phrases: list[list[int]], name: str) -> None:
    phrases.extend([[0, 0, 1, 2], [1, 2, 0], [2, 2, 2, 1]])
    gap, drafted = gap_and_drafts(Drafting(drafter=name), Parts, "phrases")
    assert gap < EXACT
    assert drafted > 10


def test_engine_uses_and_counts_the_source(engine: Engine, phrases: list[list[int]]) -> None:
    """Its phrase is the whole answer, which the n-gram cannot know."""
    stream = ask(engine, "Once upon a time", PLAIN)
    stream.completion()
    phrases.append(list(stream.context)[len(stream.prompt) - 1 :])
    make_drafts_cheap(engine, draft=0.02)
    found = ask(engine, "Once upon a time").completion()
    counted = found.stats.by_drafter["phrases"]
    assert counted.accepted > 20
    assert counted.accepted <= counted.tested <= counted.drafted
    assert found.stats.target_passes < 20


def test_source_has_a_colour_and_a_benchmark_arm(engine: Engine, phrases: list[list[int]]) -> None:
    palette = Palette({}, dark=True)
    mark = palette.mark("phrases")
    assert mark.name == "phrases"
    assert mark == palette.mark("phrases")
    assert mark.style not in [known.style for known in palette.marks.values()]
    arms = localspec_arms(engine, ["drafters"], lambda: engine)
    assert "phrases" in [arm.name for arm in arms]
