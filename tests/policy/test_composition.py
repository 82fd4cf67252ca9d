"""Planners that keep to one plan, and which planner follows from what a user said."""

from __future__ import annotations

import pytest

from localspec.decoding.interfaces import Drafter, Limits, Plan, Planner
from localspec.decoding.session import Session
from localspec.drafters.composition import compose
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.named import NamedDrafter
from localspec.drafters.options import Drafting
from localspec.drafters.parallel import ParallelReader
from localspec.drafters.registry import Parts
from localspec.errors import UsageError
from localspec.policy.policy import Policy
from localspec.policy.profile import PairProfile
from tests.policy.measuring import profile_of
from tests.support.toys import AS_IS, GREEDY, ToyCache, session_of, started

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
) -> tuple[Planner, Drafter]:
    return compose(
        drafting,
        parts or pair(),
        profile or PairProfile(),
        LIMITS,
        greedy=greedy,
        trees=trees,
        cannot=cannot,
    )


def test_drafting_is_turned_off_on_request() -> None:
    planner, drafter = chosen(Drafting(drafter="none"))
    assert planner.plan(session()) == Plan(None, reason="drafting is turned off")
    assert type(drafter) is Drafter


@pytest.mark.parametrize("drafting", [Drafting(), Drafting(depth=3), Drafting(width=2)])
def test_target_that_cannot_be_drafted_for_is_left_alone(drafting: Drafting) -> None:
    planner, drafter = chosen(drafting, cannot="it forgets")
    assert planner.plan(session()) == Plan(None, reason="it forgets")
    assert type(drafter) is Drafter


def test_drafter_by_name_is_used_even_there() -> None:
    planner, drafter = chosen(Drafting(drafter="ngram"), cannot="it forgets")
    assert planner.plan(session()).drafter == "ngram"
    assert isinstance(drafter, NamedDrafter)


@pytest.mark.parametrize("parts", [pair(), Parts()], ids=["pair", "alone"])
def test_left_to_itself_the_policy_decides(parts: Parts) -> None:
    planner, drafter = chosen(Drafting(), parts)
    assert isinstance(planner, Policy)
    assert drafter is planner
    assert "not measured" in planner.plan(session()).reason


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
        planner, drafter = chosen(drafting, parts)
        plan = planner.plan(session())
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
    planner, drafter = chosen(drafting, profile=profile_of([1.0] * 8), greedy=greedy, trees=trees)
    at = session_of([1], params=GREEDY if greedy else AS_IS, count=20)
    drafter.begin(at.context)
    tree = drafter.draft(at, planner.plan(at)).tree
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
    planner, _ = chosen(Drafting(overlap=overlap), pair(beside=beside), profile)
    assert planner.plan(session()).overlaps is overlaps
