"""Steps that nothing is planned for: as many as it takes for planning not to show, no more."""

from __future__ import annotations

import pytest
from localspec.policy.answer_state import LookupState
from localspec.policy.naps import Naps

from localspec.decoding.auto_sources import Prediction
from localspec.policy.cost_curve import VerificationCosts
from localspec.policy.profile import PairProfile
from tests.policy.lookups import ListedSource
from tests.support.toys import session_of

PLANNING = 200e-6
"""Seconds that planning a step takes here."""


def looked_up(weight: float) -> list[LookupState]:
    source = ListedSource([Prediction(1, (1.0, 0.0), weight)])
    return [LookupState(source, PairProfile().source(source).estimators["any"])]


def planned(
    seconds: float, steps: int = 400, *, models: bool = False, weight: float = 1.0
) -> tuple[int, int]:
    """Of so many steps in vain with passes of so many seconds: how many were planned, and the most
    in a row that were not."""
    profile = PairProfile()
    profile.plain_overhead, profile.step_overhead = 50e-6, 50e-6 + PLANNING
    naps, costs = Naps(profile), VerificationCosts.evenly(seconds, seconds, 8)
    session, lookups = session_of([1, 2]), looked_up(weight)
    count = row = longest = 0
    for _ in range(steps):
        if naps.goes_on(session, lookups):
            row += 1
            longest = max(longest, row)
        else:
            count, row = count + 1, 0
            naps.idled(costs, models=models)
    return count, longest


@pytest.mark.parametrize(
    ("seconds", "most"), [(1e-3, 16), (5e-3, 16), (10e-3, 8), (20e-3, 4), (60e-3, 1), (0.1, 0)]
)
def test_the_longer_a_pass_the_shorter_the_naps(seconds: float, most: int) -> None:
    count, longest = planned(seconds)
    assert longest == most
    assert count == pytest.approx(400 / (most + 1), abs=2 * most)


def test_a_model_source_is_asked_at_every_step_where_passes_are_not_short() -> None:
    assert planned(10e-3, models=True) == (400, 0)
    assert planned(1e-3, models=True)[1] == Naps.LONGEST


def test_a_firm_prediction_ends_a_nap_within_a_few_steps() -> None:
    assert planned(5e-3, weight=Naps.FIRM)[1] < Naps.LOOK
    assert planned(5e-3, weight=Naps.FIRM - 0.5)[1] == Naps.LONGEST
    assert planned(1e-3, weight=Naps.FIRM)[1] == Naps.LONGEST, "to look takes too long there"


def test_what_is_drafted_on_waking_is_followed_by_a_planned_step() -> None:
    profile = PairProfile()
    profile.step_overhead += PLANNING
    naps, session = Naps(profile), session_of([1, 2])
    costs = VerificationCosts.evenly(5e-3, 5e-3, 8)
    for _ in range(40):
        naps.idled(costs, models=False)
    firm = looked_up(Naps.FIRM)
    while naps.goes_on(session, firm):
        pass
    naps.drafted()
    assert not naps.goes_on(session, firm)


def test_what_was_drafted_ends_them() -> None:
    profile = PairProfile()
    profile.step_overhead += PLANNING
    naps, session = Naps(profile), session_of([1, 2])
    costs = VerificationCosts.evenly(5e-3, 5e-3, 8)
    for _ in range(100):
        if not naps.goes_on(session, []):
            naps.idled(costs, models=False)
    while naps.goes_on(session, []):
        pass
    naps.drafted()
    naps.idled(costs, models=False)
    assert not naps.goes_on(session, []), "one step in vain is not enough"
