"""Answers over toy models, composed as the engine composes them."""

from collections.abc import Callable, Sequence

from localspec.decoding.acceptance import GreedyMatch, SpeculativeSampling
from localspec.decoding.interfaces import Step
from localspec.decoding.loop import speculate
from localspec.decoding.sampling import SamplingParams
from localspec.drafters.composition import compose
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.policy.profile import PairProfile
from tests.decoding.exact import MODEL, Text, generate, texts
from tests.decoding.exact import gap as gap_between
from tests.policy.measuring import SHAPES, clockless, profile_of
from tests.support import toys

TEXT = (0, 1, toys.START)


def flat(parts: Parts) -> PairProfile:
    """A profile with passes over several tokens that cost almost nothing."""
    return profile_of(SHAPES["flat"], None)


def steps_of(
    drafting: Drafting,
    parts: Parts,
    profile: PairProfile,
    model: toys.ToyModel,
    prompt: Sequence[int],
    count: int,
    params: SamplingParams = toys.GREEDY,
) -> list[Step]:
    rule = GreedyMatch() if params.greedy else SpeculativeSampling()
    target = toys.ToyTarget(model, capacity=4000)
    session = toys.session_of(prompt, size=model.size, params=params, count=count)
    drafter = compose(drafting, parts, profile, target.limits, session, rule)
    drafter.begin(session.context)
    clockless(drafter, profile)
    steps = list(speculate(session, drafter, rule, target))
    assert len(session.context) == len(prompt) + count
    return steps


def counting(
    drafting: Drafting, parts: Parts, shape: str = "flat"
) -> tuple[list[Step], PairProfile]:
    """The steps of the greedy text 0 1 2 3 …, in which nothing repeats."""
    model = toys.SuccessorModel({token: (token + 1, 0.9) for token in range(219)}, 220)
    profile = profile_of(SHAPES[shape], None)
    steps = steps_of(drafting, parts, profile, model, [0], 200)
    assert [token for step in steps for token in step.tokens] == list(range(1, 201))
    return steps, profile


def gap_and_drafts(
    drafting: Drafting,
    make: Callable[[], Parts],
    name: str,
    *,
    profiled: Callable[[Parts], PairProfile] = flat,
    count: int = 4,
) -> tuple[float, int]:
    """The gap between the exact distributions of sampled and target texts, and the number of tokens
    that a source drafted."""
    drafted = 0

    def once(random: toys.EnumeratingSource) -> Text:
        nonlocal drafted
        parts, target = make(), toys.ToyTarget(MODEL)
        profile, rule, session = profiled(parts), SpeculativeSampling(), toys.session_of(TEXT)
        drafter = compose(drafting, parts, profile, target.limits, session, rule)
        clockless(drafter, profile)
        text = generate(random, MODEL, drafter, rule, prompt=TEXT, count=count, target=target)
        drafted += sum(tree.sources.count(name) for tree in target.trees)
        return text

    return gap_between(toys.enumerate_outcomes(once), texts(MODEL, TEXT, count)), drafted
