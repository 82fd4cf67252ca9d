"""The loop: what it asks for and tells, how it cuts plans, and honest accounts.

`ToyTarget` checks the protocol in every test: each pass starts from a cache that is a beginning of
the committed text, and is committed or rolled back before the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import (
    PROMPT,
    TARGET,
    PassRequest,
    PassResult,
    Plan,
    Planner,
    Step,
)
from localspec.decoding.loop import drive, speculate
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import Rows, SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.policy.fixed import Fixed, Never
from tests.decoding.exact import DRAFTERS
from tests.decoding.steps import CYCLE, LIVELY, OTHER, run
from tests.support.drafting import ToyDrafter
from tests.support.toys import (
    AS_IS,
    GREEDY,
    START,
    ToyCache,
    ToyModel,
    ToySource,
    ToyTarget,
    chosen_chain,
    never,
    session_of,
)


def cycling(count: int = 13, ends: Callable[[int], bool] = never) -> Session:
    return session_of([0], size=CYCLE.size, params=GREEDY, count=count, ends=ends)


# What it asks for and tells.


@pytest.mark.parametrize("drafts", [True, False])
def test_source_is_told_what_every_step_committed_and_how_the_text_ended(drafts: bool) -> None:
    """One that no plan asked for as well: it has to know the text when one does."""
    session, target, source = cycling(), ToyTarget(CYCLE), chosen_chain([1])
    fixed = Fixed(Plan("toy", depth=1), target.limits, trees=True)
    planner: Planner = fixed if drafts else Never("not today")
    requests = speculate(session, ToyDrafter(source), planner, GreedyMatch())
    ends = [list(session.context) for _ in drive(session, requests, target)]
    assert source.synced == [*ends, session.context]


def test_nothing_is_asked_for_where_the_generation_has_ended() -> None:
    session, source = cycling(), chosen_chain([1])
    session.finish = "stop"
    requests = speculate(session, ToyDrafter(source), Never("plain"), GreedyMatch())
    assert list(requests) == []
    assert source.synced == [[0]]


class HiddenSource(ToySource):
    """Wants hidden rows; `told`: the text and the tokens whose rows came, by layer."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        super().__init__(self._grow)
        self.hidden = layers
        self.told: list[tuple[list[int], dict[int, list[int]]]] = []

    @staticmethod
    def _grow(session: Session, plan: Plan, tree: TokenTree) -> None:
        """Behind 1: 2, 0 and 1 along nodes 1, 3 and 4, and wrong tokens beside them."""
        for token, parent in ((0, ROOT), (2, ROOT), (1, 1), (0, 1), (1, 3), (1, 4)):
            tree.add(token, parent, "toy")

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        found = {layer: rows.argmax(axis=1).tolist() for layer, rows in hidden.items()}
        self.told.append((list(context), found))


@pytest.mark.parametrize("layers", [(), (2,), (0, 7)])
def test_hidden_rows_are_those_of_the_text_and_the_accepted_path(layers: tuple[int, ...]) -> None:
    """Of each token `ToyTarget` gives the token itself. The last one has no row yet."""
    session, source = cycling(6), HiddenSource(layers)
    run(session, ToyTarget(CYCLE), source, Plan("toy", depth=3))
    wanted = [
        ([0, 1], [0]),
        ([0, 1, 2, 0, 1, 2], [1, 2, 0, 1]),
        ([0, 1, 2, 0, 1, 2, 0], [2]),
    ]
    assert source.told == [
        *((text, dict.fromkeys(layers, tokens)) for text, tokens in wanted),
        (session.context, {}),
    ]


# Plans.


def depths_and_widths(
    plan: Plan, count: int = 13, **limits: int
) -> tuple[list[Step], set[tuple[int, int]]]:
    """The steps of an answer, and the plans of those in its middle."""
    source = chosen_chain([2, 0, 1] * 5)
    steps = run(cycling(count), ToyTarget(CYCLE, **limits), source, plan)
    return steps, {(step.plan.depth, step.plan.width) for step in steps[1:-1]}


def test_plan_is_cut_to_what_the_answer_still_needs() -> None:
    steps, _ = depths_and_widths(Plan("toy", depth=5, reason="as told"), 10)
    assert [step.plan.depth for step in steps] == [0, 5, 2]
    assert [len(step.tokens) for step in steps] == [1, 6, 3]
    assert {step.plan.reason for step in steps[1:]} == {"as told"}


def test_plan_is_cut_to_what_the_target_verifies_at_once() -> None:
    assert depths_and_widths(Plan("toy", depth=9, width=3), max_draft=4)[1] == {(4, 1)}
    assert depths_and_widths(Plan("toy", depth=2, width=9), max_draft=6)[1] == {(2, 3)}


def test_plan_is_cut_to_the_room_in_the_cache() -> None:
    model, session = DraftModel(ToyCache(CYCLE), CYCLE.size), cycling(19)
    run(session, ToyTarget(CYCLE, capacity=20), model, Plan("model", depth=3, width=3))
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
    assert any(len(step.tree) for step in steps)


# Accounts.


def test_steps_say_who_proposed_what_and_what_became_of_it() -> None:
    session = cycling(9)
    steps = run(session, ToyTarget(CYCLE), chosen_chain([2, 0, 2]), Plan("toy", depth=3))
    assert steps[0].plan is PROMPT, "which drafts nothing"
    assert [step.tokens for step in steps] == [[1], [2, 0, 1], [2, 0, 1], [2, 0]]
    assert [step.sources for step in steps] == [
        [TARGET],
        ["toy", "toy", TARGET],
        ["toy", "toy", TARGET],
        ["toy", TARGET],
    ]
    assert [step.path for step in steps] == [[], [0, 1], [0, 1], [0]]
    assert [step.tests for step in steps] == [[], [0, 1, 2], [0, 1, 2], [0]]
    assert [(s.drafted, s.tested, s.accepted) for s in steps] == [
        (0, 0, 0),
        (3, 3, 2),
        (3, 3, 2),
        (1, 1, 1),
    ]
    assert session.finish == "length"


@pytest.mark.parametrize("count", [13, 3])
def test_tokens_behind_an_end_token_count_as_neither_tested_nor_accepted(count: int) -> None:
    """Which may be the last that fits."""
    session = cycling(count, ends=lambda token: token == 0)
    source = chosen_chain([2, 0, 1, 2] if count == 13 else [2])
    last = run(session, ToyTarget(CYCLE), source, Plan("toy", depth=4))[-1]
    assert (last.tokens, session.finish) == ([2, 0], "stop")
    assert last.sources == ["toy", "toy" if count == 13 else TARGET]
    wanted = (4, 2, 2) if count == 13 else (1, 1, 1)
    assert (last.drafted, last.tested, last.accepted) == wanted


def test_source_with_nothing_to_propose_costs_a_plain_step_and_says_so() -> None:
    steps = run(cycling(4), ToyTarget(CYCLE), chosen_chain([]), Plan("toy", depth=3))
    assert [step.tokens for step in steps] == [[1], [2], [0], [1]]
    assert [(step.plan.drafter, step.drafted) for step in steps[1:3]] == [("toy", 0)] * 2
    nothing = "drafter 'toy' had nothing to propose"
    assert [step.why_not_drafted for step in steps[1:3]] == [nothing] * 2


def test_seconds_of_a_step_are_those_between_its_plan_and_its_end() -> None:
    """Drafting takes 2 and a pass 4, of which the target says 1; learning from a step, 3, counts to
    the next one. What is done with a step is not counted."""
    now, session = 1000.0, cycling(3)

    def draft(session: Session, plan: Plan, tree: TokenTree) -> None:
        nonlocal now
        now += 2.0

    class Slow(ToyTarget):
        def forward(self, request: PassRequest) -> PassResult:
            nonlocal now
            now += 4.0
            return super().forward(request)

    class Learning(Never):
        def plan(self, session: Session) -> Plan:
            return Plan("toy", depth=1)

        def observe(self, step: Step) -> None:
            nonlocal now
            now += 3.0

    requests = speculate(
        session, ToyDrafter(ToySource(draft)), Learning(""), GreedyMatch(), clock=lambda: now
    )
    steps = []
    for step in drive(session, requests, Slow(CYCLE)):
        steps.append(step)
        now += 100.0
    assert [step.seconds for step in steps] == [4.0, 9.0, 9.0]
    assert [step.target_seconds for step in steps] == [1.0] * 3
    assert [step.draft_seconds for step in steps] == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["model", "cascade"])
@pytest.mark.parametrize(
    ("params", "rule"),
    [
        (GREEDY, GreedyMatch()),
        (AS_IS, SpeculativeSampling()),
        (AS_IS, BlockVerification()),
        (SamplingParams(), BestLossless()),
    ],
    ids=["greedy", "token", "block", "defaults"],
)
@pytest.mark.parametrize("width", [1, 2])
def test_drafting_with_the_target_itself_accepts_every_token(
    name: str, params: SamplingParams, rule: AcceptanceRule, width: int
) -> None:
    """p and q are the same numbers, so every coin has probability 1."""
    session = session_of([0, 2, START], count=22, params=params)
    target, source = ToyTarget(LIVELY), DRAFTERS[name](LIVELY)
    source.begin(session.context)
    steps = run(session, target, source, Plan(source.name, depth=3, width=width), rule)
    assert [len(step.tokens) for step in steps] == [1, 4, 4, 4, 4, 4, 1]
    assert [step.accepted for step in steps] == [0, 3, 3, 3, 3, 3, 0]
    assert target.passes == 7
    if width == 1:
        assert [step.tested for step in steps] == [step.accepted for step in steps]
