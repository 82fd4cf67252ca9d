"""Steps of the loop: all of a generation, or one made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.decoding.acceptance import AcceptanceRule, GreedyMatch
from localspec.decoding.interfaces import TARGET, Draft, Plan, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import TokenTree
from localspec.policy.fixed import Fixed
from tests.support.drafting import ToyDrafter
from tests.support.toys import ToyModel, ToyTarget, started

CYCLE = ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""
LIVELY = started([[5, 3, 2], [1, 5, 4], [4, 1, 5]])
OTHER = started([[1, 2, 7], [7, 1, 2], [2, 7, 1]])


def run(
    session: Session,
    target: ToyTarget,
    source: Source,
    plan: Plan,
    rule: AcceptanceRule | None = None,
) -> list[Step]:
    """All steps; the cache is compared with the text after each."""
    steps, rule = [], rule or GreedyMatch()
    planner = Fixed(plan, target.limits, trees=rule.trees)
    for step in drive(session, speculate(session, ToyDrafter(source), planner, rule), target):
        assert target.cache == session.context[:-1]
        steps.append(step)
    assert target.cache == session.context[:-1]
    return steps


def step_of(
    plan: Plan,
    tree: TokenTree | None = None,
    *,
    path: Sequence[int] = (),
    tests: Sequence[int] = (),
    seconds: tuple[float, float, float] = (1.0, 0.5, 0.25),
    context_length: int = 1,
) -> Step:
    """A step as if the loop had made it, with token 0 from the target at its end.

    `seconds`: of the step, of the target in it, of the draft model in it.
    """
    tree = tree or TokenTree()
    return Step(
        tokens=[*(tree.tokens[node] for node in path), 0],
        sources=[*(tree.sources[node] for node in path), TARGET],
        plan=plan,
        draft=Draft(tree),
        path=list(path),
        tests=list(tests),
        context_length=context_length,
        seconds=seconds[0],
        target_seconds=seconds[1],
        draft_seconds=seconds[2],
    )
