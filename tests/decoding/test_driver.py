"""State of caches after every way to end a generation."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import PassRequest, PassResult, Plan
from localspec.decoding.loop import Drafter, speculate
from localspec.decoding.sampling import Rows
from localspec.drafters.draft_model import DraftModel
from tests.decoding.exact import LIVELY, OTHER
from tests.support.drafting import ToyDrafter
from tests.support.toys import GREEDY, START, ToyCache, ToyTarget, session_of


class Interrupted(Exception):
    pass


class CleanupFailed(Exception):
    pass


class Fault:
    """Raises at the second call for a place. `passed`: the places it was called for, in order;
    `over`: whether the generation ends, so that commits are for cleaning up."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.passed: list[str] = []
        self.over = False

    def __call__(self, place: str) -> None:
        self.passed.append(place)
        if place == self.where and self.passed.count(place) == 2:
            self.over = True
            raise Interrupted

    def watch(self, owner: object, name: str, before: str = "", after: str = "") -> None:
        method = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            if before:
                self(before)
            result = method(*arguments)
            if after:
                self(after)
            return result

        setattr(owner, name, watched)


class FailingTarget(ToyTarget):
    """Fails in the middle of a pass."""

    def __init__(self, failing: Fault) -> None:
        super().__init__(LIVELY)
        self.failing = failing
        failing.watch(self, "forward", "forward")
        failing.watch(self, "commit", "commit", "late commit")
        failing.watch(self, "rollback", "rollback")

    def forward(self, request: PassRequest) -> PassResult:
        result = super().forward(request)
        self.cache += request.tree.tokens
        self.failing("late forward")
        del self.cache[len(request.context) :]
        return result


class FailingDrafter(ToyDrafter):
    """Drafts with a draft model; cleaning up may fail."""

    def __init__(self, model: DraftModel, failing: Fault, *, cleans: bool) -> None:
        plan = Plan("model", depth=3)
        super().__init__(model, plan, ToyTarget(LIVELY).limits)
        self.failing = failing
        self.cleans = cleans
        failing.watch(self, "draft", after="draft")
        failing.watch(self, "observe", "observe")

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        cleanup = self.failing.over
        self.failing("cleanup" if cleanup else "committed")
        super().committed(context, hidden)
        if cleanup and not self.cleans:
            raise CleanupFailed


FAILS = (
    *("draft", "forward", "late forward", "rule"),
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
    rule = GreedyMatch()
    failing.watch(rule, "accept", "rule")
    steps = speculate(session, drafter, rule, target)

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
    list(speculate(undisturbed, Drafter("the reference"), GreedyMatch(), ToyTarget(LIVELY)))
    if cleans:
        failing.over = False
        target.rollback(session.context[:-1])  # as the engine does: a pass needs a token
        list(speculate(session, drafter, rule, target))
    assert session.context == undisturbed.context[: len(session.context)]
    assert not cleans or len(session.context) == len(undisturbed.context)
