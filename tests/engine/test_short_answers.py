"""Answers too short for the draft model to earn back reading the prompt, and what comes after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

import localspec
from localspec import Drafting, Engine
from localspec.drafters.composition import sources
from localspec.policy.reasons import TOO_SHORT
from tests.support import inside
from tests.support.asking import GREEDY, PLAIN, asked
from tests.support.sessions import SIZES, FollowingCosts, drafting_pair

STORY = "Once upon a time there was a fox who lived in a wood with his friends, and one day"


@pytest.fixture
def engine() -> Iterator[Engine]:
    # Exactly plain decoding's text, as some of these answers have near ties.
    with drafting_pair(context=512, threads=1, exact=True) as opened:
        for source in sources(inside.parts(opened))[1]:
            costs = opened.profile.source(source).costs = FollowingCosts()
            costs.learn({n: 0.004 * n for n in SIZES}, 0)  # a fifth of the target's, for each
        yield opened


def known(engine: Engine) -> Sequence[int]:
    model = inside.parts(engine).model
    assert model is not None
    return model.cache.tokens


def said(engine: Engine, text: str, count: int, drafting: Drafting | None = None) -> str:
    return asked(engine, text, drafting, count).completion().text


def test_a_short_answer_leaves_the_draft_model_out_and_a_long_one_takes_it(engine: Engine) -> None:
    with engine.stream(STORY, max_tokens=1, sampling=GREEDY) as stream:
        steps = [chunk.step for chunk in stream if chunk.step is not None]
        prompt = len(stream.prompt)
    assert len(known(engine)) == 0
    assert all(step.draft_seconds == 0.0 for step in steps)
    answer = engine.generate(STORY, max_tokens=60, sampling=GREEDY)
    assert len(known(engine)) >= prompt
    assert answer.stats.by_drafter["model"].accepted > 10
    assert answer.text == said(engine, STORY, 60, PLAIN)


def test_what_it_missed_is_read_when_the_conversation_goes_on(engine: Engine) -> None:
    said(engine, STORY, 40)
    other = "A girl named Sue found a red ball in the park. She"
    short = said(engine, other, 1)
    longer = other + short
    with engine.stream(longer, max_tokens=60, sampling=GREEDY) as stream:
        drafted = stream.completion().text
        assert list(known(engine)[: len(stream.prompt)]) == list(stream.prompt)
    assert drafted == said(engine, longer, 60, PLAIN)
    assert said(engine, STORY, 40) == said(engine, STORY, 40, PLAIN)


def test_it_says_why_and_a_prompt_that_was_read_costs_nothing(engine: Engine) -> None:
    def reasons() -> set[str]:
        with engine.stream(STORY, max_tokens=4, sampling=GREEDY) as stream:
            return {chunk.step.plan.reason for chunk in stream if chunk.step is not None}

    assert TOO_SHORT in reasons()
    said(engine, STORY, 60)
    assert TOO_SHORT not in reasons()


def test_a_long_context_costs_the_draft_model_no_memory() -> None:
    """It drafts behind texts that are longer than its cache all the same."""
    with localspec.load(context=4096, draft="demo") as opened:
        target, draft = inside.contexts(opened)
        assert draft.capacity < 2200 < target.capacity
        drafting = Drafting(drafter="model", depth=3)
        stream = asked(opened, STORY * 110, drafting, 24)
        stream.completion()
        assert len(stream.prompt) > draft.capacity
        assert stream.stats.accepted > 3
