"""A draft model reads no prompt of a short answer, nor where it hardly saved anything lately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import localspec
from localspec import Drafting, Engine
from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import Limits
from localspec.decoding.loop import drive, speculate
from localspec.drafters.composition import compose, sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.policy.model_state import BEST, ModelState, repays_prompt
from localspec.policy.profile import PairProfile
from localspec.policy.reasons import TOO_SHORT
from tests.policy.measuring import MODEL, SHAPES, clockless, curve, profile_of
from tests.support import inside
from tests.support.asking import PLAIN, asked
from tests.support.sessions import SIZES, FollowingCosts, drafting_pair
from tests.support.toys import GREEDY, Follows, ToyCache, ToyTarget, session_of

LIMITS = Limits(capacity=64, max_draft=32, max_leaves=16)
WORDS = 50
READING = (0.05, 0.1, 0.15, 0.2)
"""Passes of a draft model of a twentieth of the target's cost, over 1 to 4 tokens."""


def pays(profile: PairProfile, *, reads: int, longest: int) -> bool:
    source = DraftModel(ToyCache(Follows({}, 4), capacity=2000), 4, window=None)
    return repays_prompt(profile, source, session_of([0] * (reads + 1), count=longest), 0)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    each=st.floats(0.01, 1.0),
    reads=st.integers(1, 400),
    longest=st.integers(1, 400),
    depth=st.integers(1, 8),
)
def test_where_it_is_left_out_the_best_drafts_would_have_lost(
    shape: str, each: float, reads: int, longest: int, depth: int
) -> None:
    profile = profile_of(SHAPES[shape], [each * n for n in range(1, 5)])
    if pays(profile, reads=reads, longest=longest):
        return
    # Steps of one depth, every draft right as often as any: localspec's own work is left out.
    costs, own = profile.source(MODEL).costs, profile.target
    step = own.seconds(depth + 1, reads) + depth * costs.seconds(1, reads)
    tokens = sum(BEST**n for n in range(depth + 1))
    plain = longest * own.seconds(1, reads)
    assert longest / tokens * step + costs.seconds(reads, 0) > 0.99 * plain


def test_the_longer_the_prompt_the_longer_the_answer_must_be() -> None:
    profile = profile_of(SHAPES["flat"], READING)

    def least(reads: int) -> int:
        return next(n for n in range(1, 1000) if pays(profile, reads=reads, longest=n))

    assert 4 <= least(60) <= 6
    assert 1.8 * least(200) < least(400) < 2.2 * least(200)


def test_where_drafts_never_pay_no_prompt_is_read() -> None:
    profile = profile_of(SHAPES["ruinous"], READING)
    assert not pays(profile, reads=1, longest=10_000)


@pytest.mark.parametrize("known", ["target", "draft"])
def test_what_is_not_measured_is_read(known: str) -> None:
    profile = profile_of(SHAPES["flat"], None)
    if known == "draft":
        profile = PairProfile()
        profile.source(MODEL).costs = curve(READING)
    assert pays(profile, reads=60, longest=1)


def after(saved: float) -> PairProfile:
    """Of a pair whose draft model saved so many plain passes a token lately."""
    profile = profile_of(SHAPES["steep"], READING)
    for _ in range(50):
        profile.source(MODEL).record_savings(64 * saved, 64)
    return profile


def test_one_that_hardly_saved_anything_reads_no_more() -> None:
    assert pays(profile_of(SHAPES["steep"], READING), reads=100, longest=64)
    assert pays(after(0.3), reads=100, longest=64)
    assert not pays(after(0.02), reads=100, longest=64), "1.3 passes, and 5 to read"
    assert pays(after(0.02), reads=10, longest=64), "half a pass"
    assert not pays(after(-0.1), reads=1, longest=64)


def test_it_is_tried_again_when_it_was_left_out_for_long() -> None:
    """Its prompts are read for nothing meanwhile, so that they must be few: here each takes 5
    passes, of answers of 64."""
    profile, read, answers = after(0.0), 0, 60
    for _ in range(answers):
        if pays(profile, reads=100, longest=64):
            read += 1
            profile.source(MODEL).record_savings(0.0, 64)
    assert read >= 1
    assert 5 * read <= ModelState.TRIALS * 64 * answers


def test_answers_are_taken_to_be_as_long_as_they_were() -> None:
    profile = after(0.1)
    assert pays(profile, reads=100, longest=1000)
    for _ in range(10):
        profile.begin()
        profile.said += 9
    assert profile.usual_length == pytest.approx(9)
    assert not pays(profile, reads=100, longest=1000)
    profile.begin()
    profile.said += 2000
    assert pays(profile, reads=100, longest=1000)


@pytest.mark.parametrize("right", [True, False])
def test_an_answer_tells_what_it_earned(right: bool) -> None:
    """Drafts that are always right save nearly what the best could, others nothing."""
    words = 400
    told = {token: (token + 1 if right else 0, 0.99) for token in range(words - 1)}
    profile = profile_of(SHAPES["flat"], (0.05,))
    cache = ToyCache(Follows(told, words), capacity=2 * words)
    limits = Limits(capacity=2 * words, max_draft=7, max_leaves=8)
    session = session_of([0], size=words, params=GREEDY, count=300)
    drafter = compose(
        Drafting(),
        Parts(DraftModel(cache, words)),
        profile,
        limits,
        greedy=True,
        trees=False,
        cannot=None,
        session=session,
    )
    drafter.begin(session.context)
    says = Follows({token: (token + 1, 0.999) for token in range(words - 1)}, words)
    target = ToyTarget(says, capacity=2 * words, max_leaves=8)
    requests = speculate(session, clockless(drafter, profile), GreedyMatch())
    tokens = sum(len(step.tokens) for step in drive(session, requests, target))
    saved = profile.source(MODEL).saved
    assert profile.usual_length == tokens == 300
    assert saved is not None
    if right:
        assert 0.6 < saved < 0.9
    else:
        assert -0.2 < saved < 0.2


def test_what_is_read_of_a_prompt() -> None:
    cache = ToyCache(Follows({}, WORDS), capacity=64)
    whole, part = DraftModel(cache, WORDS, window=None), DraftModel(cache, WORDS, window=8)
    prompt = list(range(40))
    assert [whole.reads(prompt, known) for known in (0, 30, 39, 40)] == [39, 9, 0, 0]
    assert [part.reads(prompt, known) for known in (0, 30, 39)] == [11, 9, 0]


# Over the embedded pair: answers too short to earn back reading the prompt, and what comes after.


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
