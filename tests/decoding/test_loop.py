"""The loop: caches that always equal the text, however a generation ends, and honest accounts.

`ToyTarget` checks the protocol in every test: each pass starts from a cache that is a beginning of
the committed text, and is committed or rolled back before the next.
"""

from __future__ import annotations

from functools import partial

import pytest

from localspec.decoding.acceptance import (
    AcceptanceRule,
    BlockVerification,
    GreedyMatch,
    SpeculativeSampling,
)
from localspec.decoding.interfaces import (
    TARGET,
    Plan,
    Planner,
)
from localspec.decoding.loop import drive, speculate
from localspec.decoding.rules import BestLossless
from localspec.decoding.sampling import SamplingParams
from localspec.policy.fixed import Fixed, Never
from tests.decoding.exact import DRAFTERS
from tests.decoding.steps import CYCLE, LIVELY, run
from tests.support.drafting import ToyDrafter
from tests.support.toys import (
    AS_IS,
    GREEDY,
    START,
    ToyTarget,
    chosen_chain,
    session_of,
)

cycling = partial(session_of, [0], size=CYCLE.size, params=GREEDY, count=13)

for_drafters = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS.keys())


# Caches.


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


def test_native_seconds_of_target_and_source_are_those_of_the_step() -> None:
    """Toy passes and proposals last a native second each."""
    session, target = cycling(count=14), ToyTarget(CYCLE)
    steps = run(session, target, chosen_chain([2, 0]), Plan("toy", depth=2))
    assert [step.target_seconds for step in steps] == [1.0] * len(steps)
    assert [step.draft_seconds for step in steps] == [0.0] + [1.0] * (len(steps) - 2) + [0.0]
    assert steps[-1].plan.drafter is None
    assert all(step.seconds > 0 for step in steps)


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
