"""What `speculate` asks for and tells: passes, hidden rows, seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import PassRequest, PassResult, Plan, Step
from localspec.decoding.loop import drive, speculate
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.policy.fixed import Fixed, Never
from tests.decoding.steps import CYCLE
from tests.support.drafting import ToyDrafter
from tests.support.toys import GREEDY, ToySource, ToyTarget, chosen_chain, session_of


def a_session(count: int = 9) -> Session:
    return session_of([0], size=CYCLE.size, params=GREEDY, count=count)


def test_nothing_is_asked_for_where_the_generation_has_ended() -> None:
    session, source = a_session(), chosen_chain([1])
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
    session, source, target = a_session(count=6), HiddenSource(layers), ToyTarget(CYCLE)
    planner = Fixed(Plan("toy", depth=3), target.limits, trees=True)
    list(drive(session, speculate(session, ToyDrafter(source), planner, GreedyMatch()), target))
    wanted = [
        ([0, 1], [0]),
        ([0, 1, 2, 0, 1, 2], [1, 2, 0, 1]),
        ([0, 1, 2, 0, 1, 2, 0], [2]),
    ]
    assert source.told == [
        *((text, dict.fromkeys(layers, tokens)) for text, tokens in wanted),
        (session.context, {}),
    ]


def test_no_hidden_rows_come_where_a_step_is_interrupted() -> None:
    session, source, target = a_session(), HiddenSource((2,)), ToyTarget(CYCLE)
    planner = Fixed(Plan("toy", depth=3), target.limits, trees=True)
    requests = speculate(session, ToyDrafter(source), planner, GreedyMatch())
    requests.send(None)
    requests.close()
    assert source.told == [([0], {})]


def test_seconds_of_a_step_are_those_between_its_plan_and_its_end() -> None:
    """Drafting takes 2 and a pass 4, of which the target says 1; learning from a step, 3, counts to
    the next one. What is done with a step is not counted."""
    now, session = 1000.0, a_session(count=3)

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
