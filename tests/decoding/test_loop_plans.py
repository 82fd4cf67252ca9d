"""How a plan by name is cut to what the answer needs and the target can verify."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localspec.decoding.acceptance import GreedyMatch, SpeculativeSampling
from localspec.decoding.interfaces import PROMPT, Plan, Planner, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.drafters.draft_model import DraftModel
from localspec.policy.fixed import Fixed
from tests.decoding.exact import DRAFTERS
from tests.decoding.steps import CYCLE, LIVELY, OTHER, run
from tests.support.drafting import ToyDrafter
from tests.support.toys import (
    GREEDY,
    START,
    ToyCache,
    ToyModel,
    ToySource,
    ToyTarget,
    chosen_chain,
    session_of,
)


class Watched:
    """Notes what a planner is asked and told."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.asked = 0
        self.seen: list[Step] = []

    def plan(self, session: Session) -> Plan:
        self.asked += 1
        return self.planner.plan(session)

    def observe(self, step: Step) -> None:
        self.seen.append(step)
        self.planner.observe(step)


def watch(
    plan: Plan,
    *,
    count: int = 13,
    capacity: int = 64,
    max_leaves: int = 8,
    max_draft: int = 16,
    source: ToySource | None = None,
) -> tuple[list[Step], Watched]:
    target = ToyTarget(CYCLE, capacity=capacity, max_leaves=max_leaves, max_draft=max_draft)
    planner = Watched(Fixed(plan, target.limits, trees=True))
    drafter = ToyDrafter(source or chosen_chain([2, 0, 1] * 5))
    session = session_of([0], size=3, params=GREEDY, count=count)
    requests = speculate(session, drafter, planner, GreedyMatch())
    steps = list(drive(session, requests, target))
    assert planner.seen == steps
    return steps, planner


def test_first_step_is_the_prompts_own_and_drafts_nothing() -> None:
    source = chosen_chain([1, 2, 0])
    steps, planner = watch(Plan("toy", depth=3), source=source)
    assert steps[0].plan is PROMPT
    assert (steps[0].drafted, steps[0].tokens) == (0, [1])
    assert planner.asked == len(steps) - 1


def test_plan_is_cut_to_what_the_answer_still_needs() -> None:
    steps, _ = watch(Plan("toy", depth=5, reason="as told"), count=10)
    assert [step.plan.depth for step in steps] == [0, 5, 2]
    assert [len(step.tokens) for step in steps] == [1, 6, 3]
    assert {step.plan.reason for step in steps[1:]} == {"as told"}


def test_plan_is_cut_to_what_the_target_verifies_at_once() -> None:
    steps, _ = watch(Plan("toy", depth=9, width=3), max_draft=4)
    assert {(step.plan.depth, step.plan.width) for step in steps[1:-1]} == {(4, 1)}
    steps, _ = watch(Plan("toy", depth=2, width=9), max_draft=6)
    assert {(step.plan.depth, step.plan.width) for step in steps[1:-1]} == {(2, 3)}


def test_plan_is_cut_to_the_room_in_the_cache() -> None:
    """`ToyTarget` would not take a tree beyond its capacity."""
    model = DraftModel(ToyCache(CYCLE), CYCLE.size)
    session, target = (
        session_of([0], size=3, params=GREEDY, count=19),
        ToyTarget(CYCLE, capacity=20),
    )
    run(session, target, model, Plan("model", depth=3, width=3))
    assert len(session.context) == 20


@pytest.mark.parametrize("max_leaves", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_no_drafter_grows_more_branches_than_the_target_has(
    make: Callable[[ToyModel], Source], depth: int, max_leaves: int
) -> None:
    """`ToyTarget` counts them. A draft model's tree has a branch beside every node it follows."""
    session = session_of([0, 1, 2, 0, 2, 0, START], count=20)
    source = make(OTHER)
    source.begin(session.context)
    target = ToyTarget(LIVELY, max_leaves=max_leaves)
    steps = run(session, target, source, Plan(source.name, depth, 3), SpeculativeSampling())
    trees = [step.tree for step in steps]
    assert any(len(tree) for tree in trees)
    assert all(
        sum(not list(tree.children(node)) for node in range(len(tree))) <= max_leaves
        for tree in trees
    )


def test_source_with_nothing_to_propose_costs_a_plain_step_and_says_so() -> None:
    steps, _ = watch(Plan("toy", depth=3), count=4, source=chosen_chain([]))
    assert [step.tokens for step in steps] == [[1], [2], [0], [1]]
    assert [(step.plan.drafter, step.drafted) for step in steps[1:3]] == [("toy", 0)] * 2
    nothing = "drafter 'toy' had nothing to propose"
    assert [step.why_not_drafted for step in steps[1:3]] == [nothing] * 2
