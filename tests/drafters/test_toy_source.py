"""A new source is one file (`tests/support/phrases.py`), one registration and one test.

Nothing else knows of it, and it takes part in `auto`, by name, in statistics, in the colours of
the screen and in the benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from localspec import Drafting, Engine, SamplingParams
from localspec.bench.arms import localspec_arms
from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import speculate
from localspec.decoding.rules import BestLossless
from localspec.drafters.composition import compose, sources
from localspec.drafters.registry import REGISTRY, Parts, Registration
from localspec.policy.profile import PairProfile
from localspec.tui.rendering.palette import Palette
from tests.decoding.exact import EXACT, gap, generate, texts
from tests.policy.measuring import SHAPES, Clockless, profile_of
from tests.support import phrases as phrases_file
from tests.support.phrases import PhraseSource
from tests.support.sessions import make_drafts_cheap
from tests.support.toys import (
    GREEDY,
    START,
    EnumeratingSource,
    Follows,
    ToyTarget,
    enumerate_outcomes,
    session_of,
    started,
)


@pytest.fixture
def phrases(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the registered source knows; to be filled."""
    known: list[list[int]] = []
    monkeypatch.setitem(
        REGISTRY, "phrases", Registration(lambda parts: PhraseSource(known), "knows phrases")
    )
    return known


def counting(
    drafting: Drafting, *, shape: str = "flat", count: int = 200
) -> tuple[list[Step], PairProfile]:
    """The steps of the greedy text 0 1 2 3 …, in which nothing repeats."""
    size = count + 20
    says = Follows({token: (token + 1, 0.9) for token in range(size - 1)}, size)
    profile, target = profile_of(SHAPES[shape], None), ToyTarget(says, capacity=4 * size)
    planner, drafter = compose(
        drafting, Parts(), profile, target.limits, greedy=True, trees=True, cannot=None
    )
    session = session_of([0], size=size, params=GREEDY, count=count)
    drafter.begin(session.context)
    requests = speculate(session, drafter, Clockless(planner, profile), GreedyMatch())
    steps = list(drive(session, requests, target))
    assert session.context == list(range(count + 1))
    return steps, profile


def accepted(steps: Sequence[Step]) -> int:
    return sum(step.sources.count("phrases") for step in steps)


def test_it_is_one_short_file_and_takes_part(phrases: list[list[int]]) -> None:
    assert len(Path(phrases_file.__file__).read_text().splitlines()) <= 40
    lookups, _ = sources(Parts())
    assert {source.name for source in lookups} == {"ngram", "grammar", "phrases"}


@pytest.mark.parametrize("shape", ["flat", "tiles"])
def test_auto_uses_it_where_it_pays(phrases: list[list[int]], shape: str) -> None:
    phrases.append(list(range(50, 100)))
    steps, _ = counting(Drafting(), shape=shape)
    inside = [step for step in steps if 55 <= step.context_length < 95]
    assert accepted(inside) > 25
    assert len(inside) < 20, "of forty tokens"
    assert not any(step.drafted for step in steps if step.context_length < 45), "it knows nothing"


def test_auto_drops_it_where_it_does_not_pay(phrases: list[list[int]]) -> None:
    """It is always wrong; and where passes cost too much it is not used though it is right."""
    phrases.extend([token, 0] for token in range(200))
    steps, _ = counting(Drafting())
    assert sum(step.drafted for step in steps[:30]) > 0, "it was believed at first"
    assert sum(step.drafted for step in steps[60:]) == 0
    assert all(step.why_not_drafted for step in steps[60:])
    phrases[:] = [list(range(50, 100))]
    assert accepted(counting(Drafting(), shape="ruinous")[0]) == 0


def test_what_is_learned_of_it_is_kept_under_its_name(phrases: list[list[int]]) -> None:
    phrases.append(list(range(50, 100)))
    _, profile = counting(Drafting())
    known = profile.as_dict()["sources"]["phrases"]
    assert known["estimators"]["phrase"]["seen"] > 5


def test_it_works_by_name(phrases: list[list[int]]) -> None:
    phrases.append(list(range(50, 100)))
    steps, _ = counting(Drafting(drafter="phrases", depth=7))
    assert accepted(steps) > 35
    assert max(step.drafted for step in steps) == 7


TEXT = (0, 1, START)
MODEL = started([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])


@pytest.mark.parametrize("name", ["auto", "phrases"])
def test_sampled_text_is_the_targets(phrases: list[list[int]], name: str) -> None:
    """All outcomes, enumerated; it has something to say, right or wrong."""
    drafting = Drafting(drafter=name)
    phrases.extend([[0, 0, 1, 2], [1, 2, 0], [2, 2, 2, 1]])
    rule, drafted = BestLossless(), 0

    def once(random: EnumeratingSource) -> tuple[int, ...]:
        nonlocal drafted
        profile, target = profile_of(SHAPES["flat"], None), ToyTarget(MODEL)
        planner, drafter = compose(
            drafting, Parts(), profile, target.limits, greedy=False, trees=True, cannot=None
        )
        told = Clockless(planner, profile)
        text = generate(random, MODEL, drafter, told, rule, prompt=TEXT, count=4, target=target)
        drafted += sum(tree.sources.count("phrases") for tree in target.trees)
        return text

    assert gap(enumerate_outcomes(once), texts(MODEL, TEXT, 4)) < EXACT
    assert drafted > 10


def test_an_engine_uses_it_and_counts_it(engine: Engine, phrases: list[list[int]]) -> None:
    """It knows by heart what the answer will be, as the n-gram cannot."""
    greedy = SamplingParams(temperature=0)
    stream = engine.stream(
        "Once upon a time", max_tokens=40, sampling=greedy, drafting=Drafting(drafter="none")
    )
    answer = [token for chunk in stream for token in chunk.token_ids]
    prompt = engine.model.vocabulary.tokenize("Once upon a time", special=True, add_bos=True)
    phrases.append([*prompt[-1:], *answer])
    make_drafts_cheap(engine, draft=0.02)
    found = engine.generate("Once upon a time", max_tokens=40, sampling=greedy)
    counted = found.stats.by_drafter["phrases"]
    assert counted.accepted > 20
    assert counted.accepted <= counted.tested <= counted.drafted
    assert found.stats.target_passes < 20


def test_it_has_a_colour_and_an_arm(engine: Engine, phrases: list[list[int]]) -> None:
    palette = Palette({}, dark=True)
    mark = palette.mark("phrases")
    assert mark.name == "phrases"
    assert mark.letter == "p"
    assert mark == palette.mark("phrases")
    assert mark.style not in [known.style for known in palette.marks.values()]
    arms = localspec_arms(engine, ["drafters"])
    assert "phrases" in [arm.name for arm in arms]
