"""The speculative decoding loop, and the drafter that it asks."""

from collections.abc import Callable, Generator, Mapping, Sequence
from operator import attrgetter
from time import perf_counter

import numpy as np

from localspec.decoding.acceptance import AcceptanceRule, Verdict, Verification
from localspec.decoding.interfaces import (
    NO_ROWS,
    PROMPT,
    TARGET,
    Draft,
    PassRequest,
    PassResult,
    Plan,
    Step,
    Target,
)
from localspec.decoding.logprobs import TokenLogprob, raw_logprobs, sampled_logprobs
from localspec.decoding.sampling import NO_TOKEN, Rows
from localspec.decoding.session import Session
from localspec.decoding.sources import Source
from localspec.decoding.tree import PADDING, ROOT, TokenTree


class Drafter:
    """Plans the steps of one answer, drafts, and learns: with one named source, or with the policy
    over all sources. The base class decodes plainly.

    Args:
        reason: why it decodes plainly, for users.
        sources: those it drafts with.

    Attributes:
        hidden: target layers whose hidden states it reads after every pass.
    """

    def __init__(self, reason: str = "", sources: Sequence[Source] = ()) -> None:
        self._plain, self._sources = Plan(None, reason=reason), sources
        self.hidden = tuple(sorted({layer for source in sources for layer in source.hidden}))

    @property
    def native_seconds(self) -> float:
        return sum(map(attrgetter("native_seconds"), self._sources), 0.0)

    def begin(self, prompt: Sequence[int]) -> None:
        """Catch up with the prompt of a new answer."""
        for source in self._sources:
            source.begin(prompt)

    def plan(self, session: Session) -> Plan:
        return self._plain

    def draft(self, session: Session, plan: Plan) -> Draft:
        """Carry out a plan that drafts."""
        return Draft(TokenTree(), plan.reason)

    def verified(self, rows: Rows) -> None:
        """Receive the rows of a pass over a draft, valid during the call."""

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        """See `localspec.decoding.sources.Source.committed`."""
        for source in self._sources:
            source.committed(context, hidden)

    def observe(self, step: Step) -> None:
        """Learn from a finished step."""


def speculate(
    session: Session,
    drafter: Drafter,
    rule: AcceptanceRule,
    target: Target,
    *,
    clock: Callable[[], float] = perf_counter,
) -> Generator[Step, None, None]:
    """Yield the steps of one answer, until `session.finish` is set: speculative decoding (Leviathan
    et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2), over token trees (SpecInfer, Miao et
    al. 2023).

    However it ends, drafter and target hold a prefix of `session.context` and nothing else.

    Args:
        clock: in seconds; only for statistics.
    """
    session.coupled = rule.coupled
    learning = 0.0  # seconds; counted in the next step, which benefits
    drafted, at_prompt = drafter.native_seconds, session.at_prompt
    try:
        while session.finish is None:
            started = clock() - learning
            plan = PROMPT if at_prompt else drafter.plan(session)
            # Draft tokens from q: algorithm 1, the first loop.
            draft = NO_DRAFT if plan.drafter is None else drafter.draft(session, plan)
            tree = draft.tree

            # p at every node in one pass: algorithm 1, "run M_p in parallel".
            result = target.forward(PassRequest(session.context, tree, drafter.hidden))
            if tree.tokens:
                drafter.verified(result.rows)

            # Accept, and pick the target's own token after the accepted ones.
            verification = Verification(result.rows, tree, session)
            verdict = rule.accept(verification, session.random)
            if verdict.token == NO_TOKEN:  # the next step raises, unless this ends the answer
                *path, last = verdict.path
                verdict = Verdict(path, tree.tokens[last], verdict.tested)
            path, constraint = verdict.path, session.constraint
            if constraint is not None:
                last_node = path[-1] if path else ROOT
                constraint = verification.constraint_after(last_node, verdict.token)
            new = [*map(tree.tokens.__getitem__, path), verdict.token]
            # Before the text is extended, as penalties and grammar depend on it.
            logprobs = () if session.logprobs is None else _logprobs(verification, path, new)
            tokens = session.extend(new, constraint)

            # The last committed token stays out of the caches: the next pass starts with it.
            kept = path[: len(tokens) - 1]
            if tree.tokens:
                target.commit(tree, kept)
            hidden = _hidden_along(kept, result) if result.hidden else NO_ROWS
            drafter.committed(session.context, hidden)

            ended, before, at_prompt = clock(), drafted, False
            drafted = drafter.native_seconds
            seconds = ended - started, result.seconds, drafted - before
            step = _step(session, tokens, plan, draft, verdict, seconds, logprobs)
            drafter.observe(step)
            learning = clock() - ended
            yield step
    finally:
        try:
            drafter.committed(session.context, NO_ROWS)
        finally:
            target.rollback(session.context)


NO_DRAFT = Draft(TokenTree())


def _logprobs(target: Verification, path: list[int], new: list[int]) -> tuple[TokenLogprob, ...]:
    session, nodes = target.session, (ROOT, *path)
    if session.as_sampled:
        return sampled_logprobs([target.p(node) for node in nodes], new, session.logprobs or 0)
    return raw_logprobs((target.rows[node + 1] for node in nodes), new, session.logprobs or 0)


def _hidden_along(path: list[int], result: PassResult) -> Mapping[int, Rows]:
    """Hidden rows after the committed text and each accepted node, preceded by earlier ones."""
    taken = [0, *(node + 1 for node in path)]
    found = {layer: rows[taken] for layer, rows in result.hidden.items()}
    for layer, before in result.before.items():
        found[layer] = np.concatenate((before, found[layer]))
    return found


def _step(
    session: Session,
    tokens: list[int],
    plan: Plan,
    draft: Draft,
    verdict: Verdict,
    seconds: tuple[float, float, float],
    logprobs: tuple[TokenLogprob, ...],
) -> Step:
    path, tests, tree = verdict.path, verdict.tested, draft.tree
    if len(tokens) <= len(path):  # the answer ended inside the accepted path
        path = path[: len(tokens)]
        tests = [node for node in tests if tree.depths[node] <= len(tokens)]
    sources = [*map(tree.sources.__getitem__, path)]
    if path and path[-1] >= tree.proposed:  # padding proposes nothing
        sources = [TARGET if source == PADDING else source for source in sources]
    sources += [TARGET] * (len(tokens) - len(path))
    before = len(session.context) - len(tokens)
    return Step(
        tokens, sources, plan, draft, path, tests, before, *seconds, logprobs[: len(tokens)]
    )
