"""A draft model reads a prompt only if the answer may earn that back."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

import localspec
from localspec import Drafting, Engine
from localspec.drafters.composition import sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.registry import Parts
from localspec.policy.model_state import BEST, ModelState, repays_prompt
from localspec.policy.profile import PairProfile
from localspec.policy.reasons import TOO_SHORT
from tests.drafters.composed import steps_of
from tests.policy.measuring import MODEL, SHAPES, FixedCurve, curve, profile_of
from tests.support import inside
from tests.support.asking import PLAIN, ask
from tests.support.sessions import SIZES, drafting_pair
from tests.support.toys import GREEDY, SuccessorModel, ToyCache, session_of

READING = (0.05, 0.1, 0.15, 0.2)
"""Costs of passes over 1 to 4 tokens of a draft model with a twentieth of the target's cost."""


def pays(profile: PairProfile, *, reads: int, longest: int) -> bool:
    source = DraftModel(ToyCache(SuccessorModel({}, 4), capacity=2000), 4, window=None)
    return repays_prompt(profile, source, session_of([0] * (reads + 1), count=longest), 0)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    each=st.floats(0.01, 1.0),
    reads=st.integers(1, 400),
    longest=st.integers(1, 400),
    depth=st.integers(1, 8),
)
def test_skipped_prompts(shape: str, each: float, reads: int, longest: int, depth: int) -> None:
    profile = profile_of(SHAPES[shape], [each * n for n in range(1, 5)])
    if pays(profile, reads=reads, longest=longest):
        return
    # Steps of one depth with the best acceptance, without localspec's own work.
    costs, own = profile.source(MODEL).costs, profile.target
    step = own.seconds(depth + 1, reads) + depth * costs.seconds(1, reads)
    tokens = sum(BEST**n for n in range(depth + 1))
    plain = longest * own.seconds(1, reads)
    assert longest / tokens * step + costs.seconds(reads, 0) > 0.99 * plain


def profile_after(saved: float) -> PairProfile:
    """The profile of a pair whose draft model recently saved that many plain passes per token."""
    profile = profile_of(SHAPES["steep"], READING)
    for _ in range(50):
        profile.source(MODEL).record_savings(64 * saved, 64)
    return profile


UNMEASURED = PairProfile()  # but for the draft model
UNMEASURED.source(MODEL).costs = curve(READING)
ROWS = [2.0 * n / 20 for n in range(5, 33)]  # in measured passes: prompts are read without them


@pytest.mark.parametrize(
    ("profile", "reads", "longest", "wanted"),
    [
        (profile_of(SHAPES["ruinous"], READING), 1, 10_000, False),
        (profile_of(SHAPES["flat"], None), 60, 1, True),
        (UNMEASURED, 60, 1, True),
        (profile_of(SHAPES["flat"], READING), 400, 40, True),
        (profile_of(SHAPES["flat"], [*READING, *ROWS]), 400, 40, True),
        (profile_of(SHAPES["steep"], READING), 100, 64, True),
        (profile_after(0.3), 100, 64, True),
        (profile_after(0.02), 100, 64, False),  # 1.3 passes, and 5 to read
        (profile_after(0.02), 10, 64, True),  # half a pass
        (profile_after(-0.1), 1, 64, False),
    ],
)
def test_prompt_is_read_if_that_may_pay(
    profile: PairProfile, reads: int, longest: int, wanted: bool
) -> None:
    assert pays(profile, reads=reads, longest=longest) is wanted


def test_useless_draft_model_is_tried_again() -> None:
    """Such trials are rare: each takes 5 passes, of answers of 64."""
    profile, read, answers = profile_after(0.0), 0, 60
    for _ in range(answers):
        if pays(profile, reads=100, longest=64):
            read += 1
            profile.source(MODEL).record_savings(0.0, 64)
    assert read >= 1
    assert 5 * read <= ModelState.TRIALS * 64 * answers


def test_expected_length_follows_earlier_answers() -> None:
    profile = profile_after(0.1)
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
def test_savings_of_an_answer_are_recorded(right: bool) -> None:
    """Right drafts save nearly as much as possible, wrong ones nothing."""
    words = 400
    predictions = {token: (token + 1 if right else 0, 0.99) for token in range(words - 1)}
    profile = profile_of(SHAPES["flat"], (0.05,))
    cache = ToyCache(SuccessorModel(predictions, words), capacity=2 * words)
    text = SuccessorModel({token: (token + 1, 0.999) for token in range(words - 1)}, words)
    steps_of(Drafting(), Parts(DraftModel(cache, words)), profile, text, [0], 300)
    saved = profile.source(MODEL).saved
    assert profile.usual_length == 300
    assert saved is not None
    assert 0.6 < saved < 0.9 if right else -0.2 < saved < 0.2


# With the built-in pair: answers too short to earn back reading the prompt, and later ones.


STORY = "Once upon a time there was a fox who lived in a wood with his friends, and one day"


@pytest.fixture
def engine() -> Iterator[Engine]:
    # Exact, as some of these answers have near-ties.
    with drafting_pair(context=512, threads=1, exact=True) as opened:
        for source in sources(inside.slot(opened).parts)[1]:
            costs = opened.profile.source(source).costs = FixedCurve()
            costs.learn({n: 0.004 * n for n in SIZES}, 0)  # a fifth of the target's, for each
        yield opened


def known(engine: Engine) -> Sequence[int]:
    model = inside.slot(engine).parts.model
    assert model is not None
    return model.cache.tokens


def generate(engine: Engine, text: str, count: int, drafting: Drafting | None = None) -> str:
    return ask(engine, text, drafting, count).completion().text


def test_only_long_answers_use_the_draft_model(engine: Engine) -> None:
    with engine.stream(STORY, max_tokens=1, sampling=GREEDY) as stream:
        steps = [chunk.step for chunk in stream if chunk.step is not None]
        prompt = len(stream.prompt)
    assert len(known(engine)) == 0
    assert all(step.draft_seconds == 0.0 for step in steps)
    answer = engine.generate(STORY, max_tokens=60, sampling=GREEDY)
    assert len(known(engine)) >= prompt
    assert answer.stats.by_drafter["model"].accepted > 10
    assert answer.text == generate(engine, STORY, 60, PLAIN)


def test_missed_text_is_read_in_the_next_turn(engine: Engine) -> None:
    generate(engine, STORY, 40)
    other = "A girl named Sue found a red ball in the park. She"
    short = generate(engine, other, 1)
    longer = other + short
    with engine.stream(longer, max_tokens=60, sampling=GREEDY) as stream:
        drafted = stream.completion().text
        assert list(known(engine)[: len(stream.prompt)]) == list(stream.prompt)
    assert drafted == generate(engine, longer, 60, PLAIN)
    assert generate(engine, STORY, 40) == generate(engine, STORY, 40, PLAIN)


def test_reason_too_short_ends_once_the_prompt_was_read(engine: Engine) -> None:
    def reasons() -> set[str]:
        with engine.stream(STORY, max_tokens=4, sampling=GREEDY) as stream:
            return {chunk.step.plan.reason for chunk in stream if chunk.step is not None}

    assert TOO_SHORT in reasons()
    generate(engine, STORY, 60)
    assert TOO_SHORT not in reasons()


def test_draft_cache_is_smaller_than_a_long_context() -> None:
    with localspec.load(context=4096, draft="demo") as opened:
        target, draft = inside.contexts(opened)
        assert draft.capacity < 2200 < target.capacity
        drafting = Drafting(drafter="model", depth=3)
        stream = ask(opened, STORY * 110, drafting, 24)
        stream.completion()
        assert len(stream.prompt) > draft.capacity
        assert stream.stats.accepted > 3


def test_model_that_a_busy_moment_made_dear_is_measured_again() -> None:
    """Without passes of its own its price would stay wrong, in later sessions too."""
    with drafting_pair(context=512, threads=1, exact=True) as engine:
        engine.calibrate()
        (model,) = sources(inside.slot(engine).parts)[1]
        costs, target = engine.profile.source(model).costs, engine.profile.target
        engine.profile.doubts = 0  # of a calibration on a busy machine, which would be repeated
        costs.forget()
        costs.learn({n: 30.0 * n * target.seconds(1, 0) for n in SIZES}, 0)
        generate(engine, STORY, 60)
        assert len(known(engine)) == 0
        generate(engine, STORY, 60)
        assert costs.seconds(1, 0) < 10.0 * target.seconds(1, 0)
