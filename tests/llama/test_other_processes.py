"""What others use of the machine, from readings of its cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.llama.other_processes import OtherProcesses


@pytest.mark.parametrize(
    ("worked", "own", "found"),
    [(0.0, 0.0, 0.0), (2.0, 1.0, 1.0), (1.0, 1.05, 0.0), (None, 0.0, None)],
)
def test_what_is_not_ours_is_of_others(
    worked: float | None, own: float, found: float | None
) -> None:
    work: Iterator[float | None] = iter([500.0, None if worked is None else 500.0 + worked])
    ours, clock = iter([10.0, 10.0 + own]), iter([0.0, 1.0])
    others = OtherProcesses(lambda: next(work), lambda: next(ours), lambda: next(clock))
    assert others() == (None if found is None else pytest.approx(found))


def test_the_system_is_asked_now_and_then_only() -> None:
    asked = 0

    def work() -> float:
        nonlocal asked
        asked += 1
        return 0.0

    others = OtherProcesses(work, clock=lambda: 0.1)
    for _ in range(10):
        others()
    assert asked == 1


def test_this_system_tells_what_can_be() -> None:
    time = iter([0.0, 1e12])
    found = OtherProcesses(clock=lambda: next(time))()
    assert found is None or found >= 0.0
