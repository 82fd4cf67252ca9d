"""A source that drafts from hidden states is told them while it may be asked, and before that."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from localspec.decoding.driver import drive
from localspec.decoding.interfaces import PassRequest, PassResult, Step
from localspec.decoding.loop import speculate
from localspec.decoding.rules import BestLossless
from localspec.drafters.composition import compose, sources
from localspec.drafters.options import Drafting
from localspec.drafters.registry import Parts
from localspec.policy.profile import PairProfile
from localspec.policy.state_reading import StateReading
from tests.policy.measuring import SHAPES, Clockless, curve, profile_of
from tests.support.toy_heads import toy_head
from tests.support.toys import START, ToyModel, ToyTarget, session_of, started

TEXT = (0, 1, START)
MODEL = started([[0.5, 0.4, 0.1], [0.1, 0.5, 0.4], [0.4, 0.1, 0.5]])
WRONG = started([[0.1, 0.2, 0.7], [0.7, 0.1, 0.2], [0.2, 0.7, 0.1]])
NAMES = ["eagle", "medusa", "dflash"]


class Asked(ToyTarget):
    """Notes which passes hidden states are asked of."""

    def __init__(self) -> None:
        super().__init__(MODEL, capacity=2048)
        self.wanted: list[bool] = []

    def forward(self, request: PassRequest) -> PassResult:
        self.wanted.append(bool(request.hidden))
        return super().forward(request)


class Answers:
    """Sampled answers of one pair, one after the other: nothing repeats enough to be copied.

    Args:
        draft: what the head says.
        price: of a pass of it, in passes of the target.
    """

    def __init__(self, name: str, draft: ToyModel, price: float) -> None:
        self.name = name
        self.parts = Parts(head=toy_head(name, draft, capacity=2048))
        self.profile: PairProfile = profile_of(SHAPES["steep"], None)
        self.price(price)

    def price(self, price: float) -> None:
        for source in sources(self.parts)[1]:
            self.profile.source(source).costs = curve((price,) * 8)

    def another(self, count: int, prompt: Sequence[int] = TEXT) -> tuple[list[Step], list[bool]]:
        """Its steps, and of which passes states were asked."""
        target = Asked()
        planner, drafter = compose(
            Drafting(),
            self.parts,
            self.profile,
            target.limits,
            greedy=False,
            trees=True,
            cannot=None,
        )
        session = session_of(prompt, size=MODEL.size, count=count)
        drafter.begin(prompt)
        requests = speculate(session, drafter, Clockless(planner, self.profile), BestLossless())
        return list(drive(session, requests, target)), target.wanted


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_pay_is_told_next_to_nothing(name: str) -> None:
    answers = Answers(name, WRONG, 5.0)
    steps, wanted = answers.another(400)
    assert all(wanted[: StateReading.REST]), "it may be worth asking"
    assert sum(step.sources.count(name) for step in steps) == 0
    assert sum(wanted[100:]) < 0.35 * len(wanted[100:])
    _, wanted = answers.another(40)
    assert not any(wanted[:8]), "what was found out holds in the next answer, its prompt included"


@pytest.mark.parametrize("name", NAMES)
def test_what_pays_is_told_everything(name: str) -> None:
    steps, wanted = Answers(name, MODEL, 0.05).another(200)
    assert sum(step.sources.count(name) for step in steps) > 50
    assert all(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_what_pays_again_is_told_first_and_asked_then(name: str) -> None:
    """The toy insists on states of the very places that it is asked behind."""
    answers = Answers(name, MODEL, 5.0)
    answers.another(200)
    assert not answers.profile.source(sources(answers.parts)[1][0]).states.told
    answers.price(0.05)
    steps, wanted = answers.another(200)
    first = next(n for n, step in enumerate(steps) if step.sources.count(name))
    assert all(wanted[first - StateReading.LEAD : first])
    assert not wanted[0]
    assert sum(step.sources.count(name) for step in steps) > 30


def test_a_text_is_told_from_its_beginning_where_it_pays() -> None:
    states = StateReading()
    for _ in range(StateReading.REST - 1):
        states.unasked()
    states.asked()
    for _ in range(StateReading.REST - 1):
        states.unasked()
    assert states.told
    states.unasked()
    assert not states.told
    assert states.unread(500) == StateReading.LEAD, "it reads nothing of what it was not told"
    assert not states.ready()
    for _ in range(StateReading.LEAD):
        assert states.told
        assert not states.ready()
        states.unasked()
    assert states.ready()
    assert states.unread(500) == 500
    states.tried()
    for _ in range(StateReading.TRIED):
        assert states.told
        states.unasked()
    assert not states.told
