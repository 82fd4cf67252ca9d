"""What others use of the machine, from readings that may be of another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.policy.other_processes import BLINK, OtherProcesses, Reading


def watched(*readings: Reading | None) -> float | None:
    """What is said after the last of these readings."""
    source: Iterator[Reading | None] = iter(readings)
    clock: Iterator[float] = iter(float(n) for n in range(1, 99))
    others = OtherProcesses(lambda: next(source), lambda: next(clock))
    found = None
    for _ in readings[1:]:
        found = others()
    return found


# When; seconds of two cores together; of those at work; our own.
START = (0.0, 1000.0, 500.0, 10.0)


@pytest.mark.parametrize(
    ("reading", "others"),
    [
        ((1.0, 1002.0, 500.0, 10.0), 0.0),
        ((1.0, 1002.0, 502.0, 11.0), 1.0),
        ((1.0, 1002.0, 501.0, 11.05), 0.0),
        ((0.5, 1001.0, 500.75, 10.25), 1.0),
    ],
)
def test_what_is_not_ours_is_of_others(reading: Reading, others: float) -> None:
    assert watched(START, reading) == pytest.approx(others)


@pytest.mark.parametrize(
    "reading",
    [
        None,
        (1.0, 1000.0, 500.0, 11.0),
        (1.0, 1002.0, 500.0, 11.0),
        (1.0, 1000.4, 500.4, 10.0),
        (1.0, 1002.0, 400.0, 10.0),
    ],
    ids=["nothing", "zeros", "idle while we work", "hardly a core", "backwards"],
)
def test_figures_that_cannot_be_are_none(reading: Reading | None) -> None:
    assert watched(START, reading) is None


def test_the_system_is_asked_now_and_then_only() -> None:
    asked = 0

    def read() -> Reading:
        nonlocal asked
        asked += 1
        return START

    others = OtherProcesses(read, lambda: 0.1)
    for _ in range(10):
        others()
    assert asked == 1


def test_now_is_what_they_do_in_the_next_blink() -> None:
    """Ten busy seconds went by, and then they were done."""
    readings = iter([START, (10.0, 1020.0, 520.0, 10.0), (10.1, 1020.2, 520.01, 10.0)])
    slept: list[float] = []
    others = OtherProcesses(lambda: next(readings), lambda: 10.0, slept.append)
    assert others.now() == pytest.approx(0.1)
    assert slept == [BLINK]
    assert others() == pytest.approx(0.1), "that is what is known"


def test_this_system_tells_what_can_be() -> None:
    others = OtherProcesses(clock=lambda: 1e12)
    found = others()
    assert found is None or found >= 0.0
