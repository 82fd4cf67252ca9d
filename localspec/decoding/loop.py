"""The loop: plan, draft, verify, accept, commit; one token tree at a time."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol, runtime_checkable

from localspec.decoding.acceptance import AcceptanceRule, Rows, Verdict, Verification
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.planning.planner import Plan, Planner

TARGET = "target"
"""Source of the tokens that the target itself picked."""

PROMPT = Plan(None, reason="the first token comes with the prompt's own pass")


class Target(Protocol):
    """The model whose text is generated, with its KV cache.

    Attributes:
        native_seconds: seconds spent in native passes so far.
        capacity: tokens its cache holds, a tree's included.
        max_leaves: most branches a tree may have.
        max_draft: most tokens a tree may have.
    """

    @property
    def native_seconds(self) -> float: ...

    capacity: int
    max_leaves: int
    max_draft: int

    def forward(self, context: Sequence[int], tree: TokenTree) -> Rows:
        """One pass over the committed tokens that the cache lacks and over the tree.

        Returns:
            float32 [1 + nodes, vocabulary]: after the committed tokens, then after each node.
            Valid until the next pass.
        """
        ...

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Keep what the last pass added for the committed tokens and the path, drop the rest."""
        ...

    def rollback(self, context: Sequence[int]) -> None:
        """Drop everything from the cache that is not a beginning of `context`."""
        ...


class Drafter(Protocol):
    """Anything that proposes tokens.

    Attributes:
        name: what it is called in options, statistics and reports.
        native_seconds: seconds spent in native passes so far; 0 for a drafter without a model.
    """

    name: str

    @property
    def native_seconds(self) -> float: ...

    def begin(self, prompt: Sequence[int]) -> None:
        """Catch up with the prompt of a new generation, before its first step."""
        ...

    def propose(self, session: Session, plan: Plan, tree: TokenTree) -> None:
        """Extend the tip of `tree` (empty at first) by up to `plan.depth` levels.

        Whether to go on after a token that was drawn may depend on the tokens drawn so far, but a
        drawn token is never dropped: leaving it out because of what it is would bias the output.
        """
        ...

    def sync(self, context: Sequence[int]) -> None:
        """Keep what agrees with the committed tokens, drop what was proposed beyond them."""
        ...


@runtime_checkable
class ReadsAhead(Drafter, Protocol):
    """A drafter that can work on the next proposal while the target verifies this one."""

    def verifying(
        self, session: Session, plan: Plan, tree: TokenTree
    ) -> AbstractContextManager[None]:
        """Entered before the target's pass and left after it."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What one target pass brought; everything a user sees is made from these.

    Attributes:
        tokens: the newly committed tokens, accepted drafts first.
        sources: who proposed each of them: a drafter's name, or TARGET.
        plan: the decision, with its reason.
        tree: what was proposed.
        path: accepted nodes of `tree`.
        tests: nodes whose acceptance was decided.
        context_length: committed tokens before the step.
        seconds: wall time of the step.
        target_seconds, draft_seconds: of that, in native passes of target and draft model.
    """

    tokens: list[int]
    sources: list[str]
    plan: Plan
    tree: TokenTree
    path: list[int]
    tests: list[int]
    context_length: int
    seconds: float
    target_seconds: float
    draft_seconds: float

    @property
    def expected_tokens(self) -> float | None:
        """Tokens that the measured planner expected of this step; None without it."""
        return None if self.plan.outlook is None else self.plan.outlook.tokens

    @property
    def expected_seconds(self) -> float | None:
        """Seconds of target and draft model that it expected; None without it."""
        return None if self.plan.outlook is None else self.plan.outlook.cost

    @property
    def reads_prompt(self) -> bool:
        """Whether this is the first one, whose token comes with the prompt's own pass."""
        return self.plan is PROMPT

    @property
    def why_not_drafted(self) -> str | None:
        """The reason in words; None where something was drafted."""
        if self.tree.tokens:
            return None
        if self.plan.outlook is not None:
            return self.plan.outlook.why_nothing(self.plan.reason)
        if self.plan.drafter is not None:
            return f"drafter '{self.plan.drafter}' had nothing to propose"
        return self.plan.reason

    @property
    def drafted(self) -> int:
        """Tokens proposed."""
        return len(self.tree)

    @property
    def tested(self) -> int:
        """Tokens whose acceptance was decided."""
        return len(self.tests)

    @property
    def accepted(self) -> int:
        """Tokens accepted."""
        return len(self.path)


def speculate(
    session: Session,
    target: Target,
    drafters: Mapping[str, Drafter],
    planner: Planner,
    rule: AcceptanceRule,
) -> Generator[Step, None, None]:
    """Generate until `session.finish` is set, a step per target pass.

    However the iteration ends (finished, closed, an exception in any part), the caches hold a
    beginning of `session.context` and nothing else.
    """
    learning = 0.0  # seconds; counted to the step that follows, as there it was learned for
    try:
        while session.finish is None:
            clock = _Clock(target, learning)
            plan, drafter = _decide(session, target, drafters, planner, rule)
            tree = TokenTree()
            if drafter is not None:
                clock.drafting(drafter)
                drafter.propose(session, plan, tree)

            with _beside(session, drafter, plan, tree):
                rows = target.forward(session.context, tree)
            verification = Verification(rows, tree, session)
            verdict = rule.accept(verification, session.dice)

            path = verdict.path
            behind = verification.constraint_after(path[-1] if path else ROOT, verdict.token)
            tokens = session.extend([*(tree.tokens[n] for n in path), verdict.token], behind)
            # The last committed token stays out of the cache: the next pass starts with it.
            target.commit(tree, path[: len(tokens) - 1])
            if drafter is not None:
                drafter.sync(session.context)

            step = clock.step(session, tokens, plan, verdict, tree)
            before = perf_counter()
            planner.observe(step)
            learning = perf_counter() - before
            yield step
    finally:
        try:
            target.rollback(session.context)
        finally:
            for used in drafters.values():
                used.sync(session.context)


def _decide(
    session: Session,
    target: Target,
    drafters: Mapping[str, Drafter],
    planner: Planner,
    rule: AcceptanceRule,
) -> tuple[Plan, Drafter | None]:
    """The planner's decision, cut to what the answer still needs and the target can verify."""
    if len(session.context) == session.prompt_length:
        return PROMPT, None
    plan = planner.plan(session)
    name = plan.drafter
    if name is None:
        return plan, None
    depth = min(plan.depth, session.room - 1, target.max_draft)
    if depth < 1:
        return Plan(None, reason="the answer ends with the next token"), None
    nodes = min(target.max_draft, target.capacity - len(session.context))
    leaves = target.max_leaves if rule.trees else 1
    # Every level but the last may end width − 1 branches beside the one that goes on.
    width = min(plan.width, 1 + (leaves - 1) // depth, max(1, nodes // depth))
    if (depth, width) != (plan.depth, plan.width):
        plan = replace(plan, depth=depth, width=width)
    return plan, drafters[name]


def _beside(
    session: Session, drafter: Drafter | None, plan: Plan, tree: TokenTree
) -> AbstractContextManager[None]:
    """What goes on beside the target's pass; nothing, unless the plan says so."""
    if plan.overlaps and isinstance(drafter, ReadsAhead):
        return drafter.verifying(session, plan, tree)
    return _ALONE


_ALONE: AbstractContextManager[None] = nullcontext()


class _Clock:
    """Times one step: all of it, and the native passes within."""

    __slots__ = ("_draft_before", "_drafter", "_started", "_target", "_target_before")

    def __init__(self, target: Target, learning: float) -> None:
        self._started = perf_counter() - learning
        self._target = target
        self._target_before = target.native_seconds
        self._drafter: Drafter | None = None
        self._draft_before = 0.0

    def drafting(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._draft_before = drafter.native_seconds

    def step(
        self,
        session: Session,
        tokens: list[int],
        plan: Plan,
        verdict: Verdict,
        tree: TokenTree,
    ) -> Step:
        path, tests = verdict.path, verdict.tested
        if len(tokens) <= len(path):  # the answer ended inside the accepted path
            path = path[: len(tokens)]
            tests = [node for node in tests if tree.depths[node] <= len(tokens)]
        sources = [tree.sources[node] for node in path]
        sources += [TARGET] * (len(tokens) - len(path))
        drafter = self._drafter
        return Step(
            tokens=tokens,
            sources=sources,
            plan=plan,
            tree=tree,
            path=path,
            tests=tests,
            context_length=len(session.context) - len(tokens),
            seconds=perf_counter() - self._started,
            target_seconds=self._target.native_seconds - self._target_before,
            draft_seconds=drafter.native_seconds - self._draft_before if drafter else 0.0,
        )
