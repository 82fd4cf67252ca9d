"""Which drafter follows from what a user said; every source works by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from localspec.decoding.interfaces import Drafter, Limits, Plan, Step
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.stats import GenerationStats
from localspec.drafters.composition import compose, sources
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import NamedDrafter
from localspec.drafters.options import Drafting
from localspec.drafters.parallel import ParallelReader
from localspec.drafters.registry import REGISTRY, Parts
from localspec.errors import UsageError
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from tests.decoding.exact import CYCLE, LIVELY
from tests.drafters.composed import steps_of
from tests.policy.measuring import profile_of
from tests.support.learned import learned
from tests.support.toy_heads import toy_head
from tests.support.toys import AS_IS, GREEDY, ToyCache, ToyModel, session_of, started

LIMITS = Limits(capacity=64, max_draft=32, max_leaves=16)


def session() -> Session:
    return session_of([1])


def pair(*, beside: bool = False) -> Parts:
    """Parts with a draft model; `beside`: it can run while the target does."""
    model = DraftModel(ToyCache(started([1, 2, 3])), 4)
    model.reader = ParallelReader(model) if beside else None
    return Parts(model)


def chosen(
    drafting: Drafting,
    parts: Parts | None = None,
    profile: PairProfile | None = None,
    *,
    greedy: bool = True,
    trees: bool = True,
    cannot: str | None = None,
) -> Drafter:
    return compose(
        drafting,
        parts or pair(),
        profile or PairProfile(),
        LIMITS,
        greedy=greedy,
        trees=trees,
        cannot=cannot,
    )


@pytest.mark.parametrize(
    ("drafting", "reason"),
    [
        (Drafting(drafter="none"), "drafting is turned off"),
        *((each, "it forgets") for each in (Drafting(), Drafting(depth=3), Drafting(width=2))),
    ],
)
def test_a_target_is_left_alone_where_that_is_asked_for_or_it_cannot_be_drafted_for(
    drafting: Drafting, reason: str
) -> None:
    drafter = chosen(drafting, cannot=None if drafting.drafter == "none" else reason)
    assert drafter.plan(session()) == Plan(None, reason=reason)
    assert type(drafter) is Drafter


def test_drafter_by_name_is_used_even_there() -> None:
    drafter = chosen(Drafting(drafter="ngram"), cannot="it forgets")
    assert drafter.plan(session()).drafter == "ngram"
    assert isinstance(drafter, NamedDrafter)


@pytest.mark.parametrize("parts", [pair(), Parts()], ids=["pair", "alone"])
def test_left_to_itself_the_policy_decides(parts: Parts) -> None:
    drafter = chosen(Drafting(), parts)
    assert isinstance(drafter, Policy)
    assert "not measured" in drafter.plan(session()).reason


@pytest.mark.parametrize(
    "drafting",
    [
        Drafting(depth=3),
        Drafting(width=2),
        Drafting(min_confidence=0.1),
        Drafting(min_likelihood=0.1),
    ],
    ids=["depth", "width", "confidence", "likelihood"],
)
def test_any_shape_forces_the_choice(drafting: Drafting) -> None:
    """The draft model where there is one, else the n-gram."""
    for parts, name, depth in ((pair(), "model", 3), (Parts(), "ngram", 8)):
        drafter = chosen(drafting, parts)
        plan = drafter.plan(session())
        assert (plan.drafter, plan.reason) == (name, "fixed by option")
        assert plan.depth == drafting.depth or plan.depth == depth
        assert plan.width == drafting.width
        assert plan.min_confidence == drafting.min_confidence
        assert plan.min_likelihood == drafting.min_likelihood
        assert isinstance(drafter, NamedDrafter)
        assert drafting.forced


def test_retrieval_needs_something_learned() -> None:
    with pytest.raises(UsageError, match="nothing was learned"):
        chosen(Drafting(drafter="retrieval"), pair())


@pytest.mark.parametrize(
    ("drafting", "trees", "greedy", "branches", "drawn"),
    [
        (Drafting(), True, True, True, False),
        (Drafting(), False, True, False, False),
        (Drafting(), True, False, False, True),
        (Drafting(sampled=False), True, False, False, False),
    ],
    ids=["greedy", "greedy, a rule for chains", "sampled", "sampled, chosen drafts"],
)
def test_answer_and_rule_say_whether_drafts_branch_and_are_drawn(
    drafting: Drafting, trees: bool, greedy: bool, branches: bool, drawn: bool
) -> None:
    drafter = chosen(drafting, profile=profile_of([1.0] * 8), greedy=greedy, trees=trees)
    at = session_of([1], params=GREEDY if greedy else AS_IS, count=20)
    drafter.begin(at.context)
    tree = drafter.draft(at, drafter.plan(at)).tree
    assert tree.sources[0] == "model"
    assert tree.is_chain() is not branches
    assert any(q is not None for q in tree.proposals) is drawn


@pytest.mark.parametrize(
    ("overlap", "beside", "overlaps"),
    [("on", True, True), ("off", True, False), ("on", False, False), ("auto", True, False)],
)
def test_overlap_where_it_is_possible_and_wanted(
    overlap: str, beside: bool, overlaps: bool
) -> None:
    profile = profile_of([1.0, 1.0, 1.0, 1.0])
    drafter = chosen(Drafting(overlap=overlap), pair(beside=beside), profile)
    assert drafter.plan(session()).overlaps is overlaps


# Every registered source works by its name, with what its registration says.

PROMPT = [0, 1, 2, 0, 1]
DRAWS = {"model", "cascade", "eagle", "medusa", "mtp", "dflash", "dspark"}
"""Whose tokens are drawn from the distribution of a draft model, or of a trained head."""

for_all = pytest.mark.parametrize("name", [name for name in REGISTRY if name != "grammar"])
"""That one drafts under a grammar alone, see `test_forced.py`."""


def parts_for(name: str, model: ToyModel = CYCLE) -> Parts:
    """A draft model, or something learned, only where the registration asks for it."""
    if REGISTRY[name].needs_datastore:
        return Parts(datastore=learned([0, 1, 2] * 20))
    if REGISTRY[name].needs_head:
        return Parts(head=toy_head(REGISTRY[name].needs_head, model))
    if not REGISTRY[name].needs_model:
        return Parts()
    return Parts(DraftModel(ToyCache(model), model.size))


def answer(
    drafting: Drafting, parts: Parts, model: ToyModel = CYCLE, params: SamplingParams = GREEDY
) -> list[Step]:
    return steps_of(drafting, parts, PairProfile(), model, PROMPT, 30, params)


def counted(steps: Sequence[Step]) -> GenerationStats:
    stats = GenerationStats()
    for step in steps:
        stats.add(step)
    return stats


@for_all
def test_source_works_by_name(name: str) -> None:
    steps = answer(Drafting(drafter=name, depth=4), parts_for(name))
    assert {step.plan.drafter for step in steps[1:-1]} == {name}
    stats = counted(steps)
    assert stats.acceptance_rate == 1.0
    assert stats.tokens_per_pass > 3
    assert {part for source in stats.by_drafter for part in source.split("+")} <= set(
        name.split("+")
    )


@for_all
def test_source_by_name_drafts_as_far_as_it_is_registered(name: str) -> None:
    steps = answer(Drafting(drafter=name), parts_for(name))
    depth = REGISTRY[name].depth
    assert max(step.plan.depth for step in steps) == depth
    assert max(step.drafted for step in steps) == depth


@for_all
@pytest.mark.parametrize("sampled", [True, False], ids=["drawn", "greedy"])
def test_source_works_where_the_text_is_sampled(name: str, sampled: bool) -> None:
    """With `--greedy-drafts` what the draft model says is chosen, and has no q."""
    drafting = Drafting(drafter=name, depth=4, sampled=sampled)
    steps = answer(drafting, parts_for(name, LIVELY), LIVELY, AS_IS)
    assert counted(steps).accepted > 0
    for step in steps:
        for source, q in zip(step.tree.sources, step.tree.proposals, strict=True):
            assert (q is not None) == (sampled and source in DRAWS)


@for_all
def test_only_sources_that_need_a_model_ask_it(name: str) -> None:
    registration = REGISTRY[name]
    if not (registration.needs_model or registration.needs_head):
        assert registration.build(parts_for(name)).native_seconds == 0.0
        return
    needed = f"trained head ({name})" if registration.needs_head else "draft model"
    with pytest.raises(UsageError, match=re.escape(f"'{name}' needs a {needed}")):
        answer(Drafting(drafter=name), Parts())
    with pytest.raises(AssertionError):
        registration.build(Parts())
    parts = parts_for(name)
    answer(Drafting(drafter=name, depth=4), parts)
    model = parts.model or parts.head
    assert model is not None
    assert model.cache.native_seconds > 0


def test_windows_and_two_sources_together_take_no_part_in_auto() -> None:
    lookups, models = sources(Parts())
    assert ([source.name for source in lookups], models) == (["ngram", "grammar"], [])
    lookups, models = sources(parts_for("model"))
    assert [source.name for source in lookups] == ["ngram", "grammar"]
    assert [source.name for source in models] == ["model"]
