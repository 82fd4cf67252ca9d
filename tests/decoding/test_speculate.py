"""`speculate` driven by hand: it says what it needs, and asks no target for anything itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from localspec.decoding.acceptance import GreedyMatch
from localspec.decoding.interfaces import (
    PROMPT,
    TARGET,
    Commit,
    Draft,
    PassRequest,
    PassResult,
    Plan,
    Step,
)
from localspec.decoding.loop import Requests, speculate
from localspec.decoding.sampling import Rows
from localspec.decoding.session import Session
from localspec.decoding.tree import ROOT, TokenTree
from localspec.drafters.named import Undrafted
from localspec.policy.fixed import Never
from tests.support.drafting import ToyDrafter
from tests.support.toys import GREEDY, Propose, ToyModel, ToySource, chosen_chain, session_of

CYCLE = ToyModel([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
"""0 1 2 0 1 2 …"""
WIDTH = 2
"""Of hidden rows: the number of the pass, and the number of the row in it."""


def a_session(count: int = 9) -> Session:
    return session_of([0], size=CYCLE.size, params=GREEDY, count=count)


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Always:
    """Always the same plan, made and learned from in no time unless the clock is moved."""

    watches = False

    def __init__(self, plan: Plan, clock: Clock | None = None, learning: float = 0.0) -> None:
        self._plan = plan
        self._clock = clock or Clock()
        self._learning = learning

    def plan(self, session: Session) -> Plan:
        return self._plan

    def observe(self, step: Step) -> None:
        self._clock.now += self._learning


class HiddenSource(ToySource):
    """Wants hidden rows, and keeps what it gets.

    Attributes:
        told: what `committed` was told, as lists.
        rows: the arrays themselves.
    """

    def __init__(self, draft: Propose, layers: tuple[int, ...]) -> None:
        super().__init__(draft)
        self.hidden = layers
        self.told: list[tuple[list[int], dict[int, list[list[float]]]]] = []
        self.rows: list[Mapping[int, Rows]] = []

    def committed(self, context: Sequence[int], hidden: Mapping[int, Rows]) -> None:
        self.told.append((list(context), {layer: hidden[layer].tolist() for layer in hidden}))
        self.rows.append(hidden)


class Answering:
    """Answers passes from a table of CYCLE, with hidden rows if they are asked for."""

    def __init__(self) -> None:
        self.requests: list[PassRequest] = []
        self.results: list[PassResult] = []

    def __call__(self, request: PassRequest) -> PassResult:
        number, tree = len(self.requests), request.tree
        self.requests.append(request)
        paths = [[], *(tree.path_tokens(node) for node in range(len(tree)))]
        hidden = {
            layer: np.array([(number + layer, row) for row in range(len(paths))], np.float32)
            for layer in request.hidden
        }
        rows = CYCLE.logits([[*request.context, *path] for path in paths])
        self.results.append(PassResult(rows, 0.5, hidden))
        return self.results[-1]


def by_hand(requests: Requests, answer: Answering) -> list[PassRequest | Commit | Step]:
    """Everything that it yields, in order."""
    events = []
    event = next(requests, None)
    while event is not None:
        events.append(event)
        try:
            event = requests.send(answer(event) if isinstance(event, PassRequest) else None)
        except StopIteration:
            return events
    return events


def test_each_step_is_a_pass_a_commit_and_the_step() -> None:
    session = a_session()
    drafter = ToyDrafter(chosen_chain([2, 0, 2]))
    requests = speculate(session, drafter, Always(Plan("toy", depth=3)), GreedyMatch())
    answer = Answering()
    events = by_hand(requests, answer)
    assert [type(event) for event in events] == [PassRequest, Commit, Step] * 4
    assert session.context == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert session.finish == "length"
    steps = [event for event in events if isinstance(event, Step)]
    commits = [event for event in events if isinstance(event, Commit)]
    assert [step.tokens for step in steps] == [[1], [2, 0, 1], [2, 0, 1], [2, 0]]
    assert [step.sources[-1] for step in steps] == [TARGET, TARGET, TARGET, "toy"]
    for step, commit, request in zip(steps, commits, answer.requests, strict=True):
        assert step.tree is commit.tree is request.tree
        # The last committed token stays out of the caches.
        assert list(commit.path) == step.path[: len(step.tokens) - 1]
    assert [list(commit.path) for commit in commits] == [[], [0, 1], [0, 1], [0]]


def test_pass_is_asked_for_with_the_text_as_it_stands() -> None:
    session, lengths = a_session(), []

    class Noting(Answering):
        def __call__(self, request: PassRequest) -> PassResult:
            assert request.context is session.context
            lengths.append(len(request.context))
            return super().__call__(request)

    by_hand(speculate(session, Undrafted(), Never("plain"), GreedyMatch()), Noting())
    assert lengths == list(range(1, 10))


def test_text_is_extended_when_the_commit_comes_out_and_not_before() -> None:
    session, answer = a_session(), Answering()
    drafter = ToyDrafter(chosen_chain([1, 2]))
    requests = speculate(session, drafter, Always(Plan("toy", depth=2)), GreedyMatch())
    event = next(requests)
    assert isinstance(event, PassRequest)
    assert session.context == [0]
    event = requests.send(answer(event))
    assert isinstance(event, Commit)
    assert session.context == [0, 1]
    assert isinstance(next(requests), Step)


def test_nothing_is_asked_for_where_the_generation_has_ended() -> None:
    session, source = a_session(), chosen_chain([1])
    session.finish = "stop"
    requests = speculate(session, ToyDrafter(source), Never("plain"), GreedyMatch())
    assert list(requests) == []
    assert source.synced == [[0]]


# Hidden rows.


def tree_source(layers: tuple[int, ...]) -> HiddenSource:
    """Behind 1: 2, 0 and 1 along nodes 1, 3 and 4, and wrong tokens beside them."""

    def draft(session: Session, plan: Plan, tree: TokenTree) -> None:
        tree.add(0, ROOT, "toy")
        tree.add(2, ROOT, "toy")
        tree.add(1, 1, "toy")
        tree.add(0, 1, "toy")
        tree.add(1, 3, "toy")
        tree.add(1, 4, "toy")

    return HiddenSource(draft, layers)


def test_hidden_rows_are_those_behind_the_text_and_the_accepted_path() -> None:
    session, source, answer = a_session(count=6), tree_source((2,)), Answering()
    planner = Always(Plan("toy", depth=3))
    events = by_hand(speculate(session, ToyDrafter(source), planner, GreedyMatch()), answer)
    steps = [event for event in events if isinstance(event, Step)]
    assert [step.path for step in steps] == [[], [1, 3, 4], [0]]
    assert {request.hidden for request in answer.requests} == {(2,)}
    along = [0.0, 2.0, 4.0, 5.0]  # row 0 is behind the text, row i + 1 behind node i
    assert source.told == [
        ([0, 1], {2: [[2.0, 0.0]]}),
        ([0, 1, 2, 0, 1, 2], {2: [[3.0, row] for row in along]}),
        # Its last token is in no cache, and has no row either.
        ([0, 1, 2, 0, 1, 2, 0], {2: [[4.0, 0.0]]}),
        (session.context, {}),
    ]


def test_hidden_rows_stop_where_the_answer_does() -> None:
    """Two of the three accepted tokens fit, and the target's own does not. The last token of the
    context is in no cache, and has no row either."""
    session, source = a_session(count=3), tree_source((2,))
    planner = Always(Plan("toy", depth=3))
    by_hand(speculate(session, ToyDrafter(source), planner, GreedyMatch()), Answering())
    assert source.told[1:] == [
        ([0, 1, 2, 0], {2: [[3.0, 0.0], [3.0, 2.0]]}),
        (session.context, {}),
    ]


def test_hidden_rows_of_several_layers_come_by_layer() -> None:
    session, source = a_session(count=5), tree_source((0, 7))
    planner = Always(Plan("toy", depth=3))
    by_hand(speculate(session, ToyDrafter(source), planner, GreedyMatch()), Answering())
    (_, first), (_, second), (_, last) = source.told
    assert first == {0: [[0.0, 0.0]], 7: [[7.0, 0.0]]}
    along = [0.0, 2.0, 4.0, 5.0]
    assert second == {0: [[1.0, row] for row in along], 7: [[8.0, row] for row in along]}
    assert last == {}


def test_hidden_rows_are_the_sources_own() -> None:
    """Those of the pass belong to the target, which writes over them in the next one."""
    session, source, answer = a_session(count=5), tree_source((2,)), Answering()
    planner = Always(Plan("toy", depth=3))
    by_hand(speculate(session, ToyDrafter(source), planner, GreedyMatch()), answer)
    for result in answer.results:
        result.hidden[2].fill(np.nan)
    assert not any(np.isnan(rows).any() for told in source.rows for rows in told.values())


@pytest.mark.parametrize("passes", [1, 2])
def test_no_hidden_rows_come_where_a_step_does_not_end_as_planned(passes: int) -> None:
    session, source, answer = a_session(), tree_source((2,)), Answering()
    planner = Always(Plan("toy", depth=3))
    requests = speculate(session, ToyDrafter(source), planner, GreedyMatch())
    event = next(requests)
    while True:
        result = None
        if isinstance(event, PassRequest):
            result = answer(event)
            if len(answer.requests) == passes:
                break
        event = requests.send(result)
    requests.close()
    assert source.told[-1] == (session.context, {})
    assert len(source.told) == passes


def test_source_that_wants_no_hidden_rows_gets_none() -> None:
    session, source, answer = a_session(count=6), tree_source(()), Answering()
    planner = Always(Plan("toy", depth=3))
    by_hand(speculate(session, ToyDrafter(source), planner, GreedyMatch()), answer)
    assert {request.hidden for request in answer.requests} == {()}
    assert [hidden for _, hidden in source.told] == [{}] * 4


# Seconds.


def test_seconds_of_a_step_are_those_between_its_plan_and_its_end() -> None:
    """Drafting takes 2 and a pass 4, of which the target says half; what is done with a
    step is not counted."""
    clock = Clock()

    def draft(session: Session, plan: Plan, tree: TokenTree) -> None:
        clock.now += 2.0

    session = a_session(count=3)
    drafter, planner = ToyDrafter(ToySource(draft)), Always(Plan("toy", depth=1))
    requests, answer = speculate(session, drafter, planner, GreedyMatch(), clock=clock), Answering()
    steps = []
    event = next(requests)
    while session.finish is None or not isinstance(event, Step):
        result = None
        if isinstance(event, PassRequest):
            clock.now += 4.0
            result = answer(event)
        elif isinstance(event, Step):
            steps.append(event)
            clock.now += 100.0
        event = requests.send(result)
    steps.append(event)
    assert [step.seconds for step in steps] == [4.0, 6.0, 6.0]
    assert [step.target_seconds for step in steps] == [0.5] * 3
    assert [step.draft_seconds for step in steps] == [0.0, 1.0, 1.0]


def test_seconds_of_learning_count_to_the_step_that_follows() -> None:
    clock, session = Clock(), a_session(count=4)
    planner = Always(Plan(None, reason="plain"), clock, learning=3.0)
    requests = speculate(session, Undrafted(), planner, GreedyMatch(), clock=clock)
    steps = [event for event in by_hand(requests, Answering()) if isinstance(event, Step)]
    assert [step.seconds for step in steps] == [0.0, 3.0, 3.0, 3.0]
    assert steps[0].plan is PROMPT


def test_first_step_asks_neither_planner_nor_drafter() -> None:
    class Silent(Undrafted):
        def draft(self, session: Session, plan: Plan) -> Draft:
            raise AssertionError("it is not to draft")

    class Undecided(Never):
        def plan(self, session: Session) -> Plan:
            raise AssertionError("there is nothing to decide")

    session = a_session(count=1)
    requests = speculate(session, Silent(), Undecided("unused"), GreedyMatch())
    (_, _, step) = by_hand(requests, Answering())
    assert isinstance(step, Step)
    assert (step.plan, step.tokens, step.reads_prompt) == (PROMPT, [1], True)
