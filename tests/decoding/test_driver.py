"""State of caches after every way to end a generation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest

from localspec.decoding.acceptance import GreedyMatch, Verdict, Verification
from localspec.decoding.interfaces import Draft, Drafter, PassRequest, PassResult, Plan, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.random_source import RandomSource
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import TokenTree
from localspec.drafters.draft_model import DraftModel
from tests.decoding.exact import LIVELY, OTHER
from tests.support.drafting import ToyDrafter
from tests.support.toys import GREEDY, START, ToyCache, ToyTarget, session_of


class Interrupted(Exception):
    pass


class CleanupFailed(Exception):
    pass


class Fault:
    """Raises at the second call for a place.

    Attributes:
        passed: the places it was called for, in order.
        over: whether the generation ends, so that commits are for cleaning up.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.passed: list[str] = []
        self.over = False

    def __call__(self, place: str) -> None:
        self.passed.append(place)
        if place == self.where and self.passed.count(place) == 2:
            self.over = True
            raise Interrupted


class FailingTarget(ToyTarget):
    def __init__(self, failing: Fault) -> None:
        super().__init__(LIVELY)
        self.failing = failing

    def forward(self, request: PassRequest) -> PassResult:
        self.failing("forward")
        result = super().forward(request)
        self.cache += request.tree.tokens
        self.failing("late forward")
        del self.cache[len(request.context) :]
        return result

    def commit(self, tree: TokenTree, path: Sequence[int]) -> None:
        self.failing("commit")
        super().commit(tree, path)
        self.failing("late commit")

    def rollback(self, context: Sequence[int]) -> None:
        self.failing("rollback")
        super().rollback(context)


class FailingRule(GreedyMatch):
    def __init__(self, failing: Fault) -> None:
        self.failing = failing

    def accept(self, target: Verification, random: RandomSource) -> Verdict:
        self.failing("rule")
        return super().accept(target, random)


class FailingDrafter(ToyDrafter):
    """Drafts with a draft model; cleaning up may fail."""

    def __init__(self, model: DraftModel, failing: Fault, *, cleans: bool) -> None:
        super().__init__(model, Plan("model", depth=3), ToyTarget(LIVELY).limits)
        self.failing = failing
        self.cleans = cleans

    def plan(self, session: Session) -> Plan:
        return Plan("model", depth=3, overlaps=True)

    def draft(self, session: Session, plan: Plan) -> Draft:
        draft = super().draft(session, plan)
        self.failing("draft")
        return draft

    def verifying(
        self, session: Session, plan: Plan, draft: Draft
    ) -> AbstractContextManager[object]:
        return self._beside()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        self.failing("enter")
        try:
            yield
        finally:
            self.failing("leave")

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        cleanup = self.failing.over
        self.failing("cleanup" if cleanup else "committed")
        super().committed(context, hidden)
        if cleanup and not self.cleans:
            raise CleanupFailed

    def observe(self, step: Step) -> None:
        self.failing("observe")


FAILS = (
    *("draft", "enter", "forward", "late forward", "leave", "rule"),
    *("commit", "late commit", "committed", "observe"),
)
"""Every place where the loop calls other code."""


@pytest.mark.parametrize("cleans", [True, False], ids=["", "cleanup fails"])
@pytest.mark.parametrize("where", [*FAILS, "thrown into", "closed", "finished"])
def test_caches_hold_a_prefix_of_the_text_after_every_end(where: str, cleans: bool) -> None:
    """A failed generation can be continued."""
    failing, cache = Fault(where), ToyCache(OTHER)
    session = session_of([0, 1, START], params=GREEDY, count=20)
    target = FailingTarget(failing)
    model = DraftModel(cache, LIVELY.size)
    drafter = FailingDrafter(model, failing, cleans=cleans)
    rule = FailingRule(failing)
    steps = drive(session, speculate(session, drafter, rule), target)

    def generate() -> None:
        for number, _ in enumerate(steps, 1):
            failing.over = session.finish is not None
            if number == 3 and where == "closed":
                failing.over = True
                steps.close()
            if number == 3 and where == "thrown into":
                failing.over = True
                steps.throw(Interrupted())

    if not cleans or where not in {"closed", "finished"}:
        with pytest.raises(Interrupted if cleans else CleanupFailed):
            generate()
    else:
        generate()
    assert failing.passed[-2:] == ["cleanup", "rollback"]
    assert failing.passed.count("cleanup") == failing.passed.count("rollback") == 1
    assert (session.finish is None) == (where != "finished")
    assert len(session.context) > 3
    assert target.cache == session.context[: len(target.cache)]
    assert cache.tokens == session.context[: len(cache.tokens)]

    undisturbed = session_of([0, 1, START], params=GREEDY, count=20)
    reference = speculate(undisturbed, Drafter("the reference"), GreedyMatch())
    list(drive(undisturbed, reference, ToyTarget(LIVELY)))
    if cleans:
        failing.over = False
        target.rollback(session.context[:-1])  # as the engine does: a pass needs a token
        list(drive(session, speculate(session, drafter, rule), target))
    assert session.context == undisturbed.context[: len(session.context)]
    assert not cleans or len(session.context) == len(undisturbed.context)
