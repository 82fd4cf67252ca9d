"""The loop: caches that always equal the text, however a generation ends, and honest accounts.

`ToyTarget` checks the protocol in every test: each pass starts from a cache that is a beginning of
the committed text, and is committed or rolled back before the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
    Verdict,
    Verification,
)
from localspec.decoding.driver import drive
from localspec.decoding.interfaces import (
    TARGET,
    Limits,
    PassRequest,
    PassResult,
    Plan,
    Planner,
    Step,
)
from localspec.decoding.loop import speculate
from localspec.decoding.random_source import RandomSource, SeededRandom
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import SamplingParams
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.draft_model import DraftModel
from localspec.drafters.model import DraftModelSource
from localspec.drafters.named import Undrafted
from localspec.policy.fixed import Fixed, Never
from tests.decoding.exact import DRAFTERS
from tests.decoding.steps import CYCLE, LIVELY, OTHER, run
from tests.support.drafting import ToyDrafter, cascade_of
from tests.support.toys import (
    AS_IS,
    GREEDY,
    START,
    ToyCache,
    ToyModel,
    ToySource,
    ToyTarget,
    chosen_chain,
    session_of,
)

cycling = partial(session_of, [0], size=CYCLE.size, params=GREEDY, count=13)

for_drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())


# Caches.


@for_drafters
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("rule", [SpeculativeSampling(), BlockVerification(), BestLossless()])
def test_cache_holds_all_but_the_last_token_after_every_step(
    make: Callable[[ToyModel], Source], width: int, rule: AcceptanceRule
) -> None:
    for seed in range(10):
        session = session_of([0, 1, 2, 0, START], count=30, random=SeededRandom(seed))
        source = make(OTHER)
        source.begin(session.context)
        plan = Plan(source.name, depth=3, width=width)
        steps = run(session, ToyTarget(LIVELY), source, plan, rule)
        assert [token for step in steps for token in step.tokens] == session.context[5:]


@pytest.mark.parametrize("tokens", [[1, 2, 0, 1, 2], [2, 0, 1, 2, 0]])
@pytest.mark.parametrize("end", [0, 1, 2])
def test_cache_is_cut_where_an_end_token_cuts_the_draft(tokens: list[int], end: int) -> None:
    session = cycling(ends=lambda token: token == end)
    target = ToyTarget(CYCLE)
    run(session, target, chosen_chain(tokens), Plan("toy", depth=5))
    wanted = [0, *[1, 2, 0][: [1, 2, 0].index(end) + 1]]
    assert session.context == wanted
    assert target.cache == wanted[:-1]
    assert session.finish == "stop"


class Interrupted(Exception):
    pass


class FailingTarget(ToyTarget):
    """Fails in one of its passes, before or after it has filled the cache."""

    def __init__(self, model: ToyModel, fails: int, *, late: bool) -> None:
        super().__init__(model)
        self.fails = fails
        self.late = late

    def forward(self, request: PassRequest) -> PassResult:
        if self.passes + 1 == self.fails and not self.late:
            self.fails = 0
            raise Interrupted
        result = super().forward(request)
        if self.passes == self.fails:
            self.fails = 0
            self.cache += request.tree.tokens
            raise Interrupted
        return result


class FailingRule(GreedyMatch):
    def __init__(self, fails: int) -> None:
        self.left = fails

    def accept(self, target: Verification, random: RandomSource) -> Verdict:
        self.left -= 1
        if self.left == 0:
            raise Interrupted
        return super().accept(target, random)


class FailingPlanner(Fixed):
    """Fails while it looks at a step, which is committed by then."""

    def __init__(self, plan: Plan, limits: Limits, fails: int) -> None:
        super().__init__(plan, limits, trees=True)
        self.left = fails

    def observe(self, step: Step) -> None:
        self.left -= 1
        if self.left == 0:
            raise Interrupted


class FailingModel(DraftModelSource):
    """Fails after it has drafted."""

    def __init__(self, model: DraftModel, fails: int) -> None:
        super().__init__(model)
        self.left = fails

    @property
    def credit(self) -> str:
        self.left -= 1
        if self.left == 0:
            raise Interrupted
        return super().credit


@pytest.mark.parametrize("when", [1, 2, 4])
@pytest.mark.parametrize("where", ["source", "target", "late target", "rule", "planner"])
@pytest.mark.parametrize("width", [1, 2])
def test_generation_that_fails_leaves_clean_caches_and_can_be_gone_on_with(
    where: str, when: int, width: int
) -> None:
    plan, cache = Plan("model", depth=3, width=width), ToyCache(OTHER)
    model = DraftModel(cache, LIVELY.size)
    source = FailingModel(model, when) if where == "source" else DraftModelSource(model)
    fails = when if "target" in where else 0
    target = FailingTarget(LIVELY, fails, late=where == "late target")
    rule = FailingRule(when if where == "rule" else 0)
    planner = FailingPlanner(plan, target.limits, when if where == "planner" else 0)
    session = session_of([0, 1, START], params=GREEDY, count=20)
    undisturbed = session_of([0, 1, START], params=GREEDY, count=20)
    reference = speculate(undisturbed, Undrafted(), Never("the reference"), GreedyMatch())
    list(drive(undisturbed, reference, ToyTarget(LIVELY)))

    with pytest.raises(Interrupted):
        list(drive(session, speculate(session, ToyDrafter(source), planner, rule), target))
    assert target.cache == session.context[: len(target.cache)]
    assert cache.tokens == session.context[: len(cache.tokens)]

    target.rollback(session.context[:-1])  # as the engine does: a pass needs a token to start with
    list(drive(session, speculate(session, ToyDrafter(source), planner, rule), target))
    assert session.context == undisturbed.context


@pytest.mark.parametrize("after", [1, 2, 3])
@for_drafters
def test_generation_that_is_closed_early_leaves_clean_caches(
    make: Callable[[ToyModel], Source], after: int
) -> None:
    session = session_of([0, 1, 2, 0, START], count=30)
    target, source = ToyTarget(LIVELY), make(OTHER)
    source.begin(session.context)
    plan, rule = Plan(source.name, depth=3), BestLossless()
    planner = Fixed(plan, target.limits, trees=rule.trees)
    steps = drive(session, speculate(session, ToyDrafter(source), planner, rule), target)
    for _ in range(after):
        next(steps)
    steps.close()
    assert target.cache == session.context[:-1]
    assert session.finish is None
    run(session, target, source, plan, rule)
    assert len(session.context) == 35


@pytest.mark.parametrize("drafts", [True, False])
def test_source_is_told_what_every_step_committed_and_how_the_text_ended(drafts: bool) -> None:
    """One that no plan asked for as well: it has to know the text when one does."""
    session, target, source = cycling(), ToyTarget(CYCLE), chosen_chain([1])
    fixed = Fixed(Plan("toy", depth=1), target.limits, trees=True)
    planner: Planner = fixed if drafts else Never("not today")
    requests = speculate(session, ToyDrafter(source), planner, GreedyMatch())
    ends = [list(session.context) for _ in drive(session, requests, target)]
    assert source.synced == [*ends, session.context]


# Accounts.


def test_steps_say_who_proposed_what_and_what_became_of_it() -> None:
    session = cycling(count=9)
    steps = run(session, ToyTarget(CYCLE), chosen_chain([2, 0, 2]), Plan("toy", depth=3))
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


def test_tokens_behind_an_end_token_count_as_neither_tested_nor_accepted() -> None:
    session = cycling(ends=lambda token: token == 0)
    steps = run(session, ToyTarget(CYCLE), chosen_chain([2, 0, 1, 2]), Plan("toy", depth=4))
    last = steps[-1]
    assert (last.tokens, last.sources) == ([2, 0], ["toy", "toy"])
    assert (last.drafted, last.tested, last.accepted) == (4, 2, 2)


def test_several_sources_of_one_draft_are_told_apart() -> None:
    def draft(session: Session, plan: Plan, tree: TokenTree) -> None:
        tree.add(2, tree.add(2, ROOT, "one"), "two")
        tree.add(0, tree.add(0, 0, "two"), "three")

    session = session_of([2], size=3, params=GREEDY, count=5)
    steps = run(session, ToyTarget(ToyModel([0, 0, 1])), ToySource(draft), Plan("toy", depth=3))
    assert steps[1].sources == ["one", "two", TARGET]
    assert steps[1].tests == [0, 1]


def test_native_seconds_of_target_and_source_are_those_of_the_step() -> None:
    """Toy passes and proposals last a native second each."""
    session, target = cycling(count=14), ToyTarget(CYCLE)
    steps = run(session, target, chosen_chain([2, 0]), Plan("toy", depth=2))
    assert [step.target_seconds for step in steps] == [1.0] * len(steps)
    assert [step.draft_seconds for step in steps] == [0.0] + [1.0] * (len(steps) - 2) + [0.0]
    assert steps[-1].plan.drafter is None
    assert all(step.seconds > 0 for step in steps)


MAKERS: dict[str, Callable[[ToyModel], Source]] = {
    "model": lambda m: DraftModelSource(DraftModel(ToyCache(m), m.size)),
    "cascade": lambda m: cascade_of(DraftModel(ToyCache(m), m.size)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
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
    make: Callable[[ToyModel], Source], params: SamplingParams, rule: AcceptanceRule, width: int
) -> None:
    """p and q are the same numbers, so every coin has probability 1."""
    session = session_of([0, 2, START], count=22, params=params)
    target, source = ToyTarget(LIVELY), make(LIVELY)
    source.begin(session.context)
    steps = run(session, target, source, Plan(source.name, depth=3, width=width), rule)
    assert [len(step.tokens) for step in steps] == [1, 4, 4, 4, 4, 4, 1]
    assert [step.accepted for step in steps] == [0, 3, 3, 3, 3, 3, 0]
    assert target.passes == 7
    if width == 1:
        assert [step.tested for step in steps] == [step.accepted for step in steps]
