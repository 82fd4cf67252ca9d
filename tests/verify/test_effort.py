"""What is tried fits into the time that was promised."""

from dataclasses import replace

import pytest

from localspec.verify.cache_state import check_cache_state
from localspec.verify.checks import Deadline
from localspec.verify.greedy import check_grammar, check_greedy
from localspec.verify.sampled import check_sampled
from localspec.verify.subject import Subject
from tests.support.clock import Clock
from tests.verify.conftest import LITTLE


@pytest.mark.parametrize(
    ("seconds", "lasting", "done"),
    [
        (10.0, [3.0, 3.0, 3.0, 3.0], 3),  # a fourth would end at 12
        (10.0, [2.0, 5.0, 2.0, 2.0], 2),  # another of the longest would end at 12
        (0.0, [1.0, 1.0], 1),  # something is always done
        (-5.0, [1.0, 1.0], 1),
        (None, [3.0] * 9, 9),
    ],
)
def test_work_starts_only_if_time_is_left(
    seconds: float | None, lasting: list[float], done: int
) -> None:
    clock, begun = Clock(), 0
    for piece in Deadline(seconds, clock).within(lasting):
        begun += 1
        clock.now += piece
    assert begun == done


@pytest.mark.nightly
def test_no_time_reduces_every_check(subject: Subject) -> None:
    names, none = list(subject.ways()), Deadline(0.0)
    left = f"There was no time for {', '.join(names[1:])}."
    greedy = check_greedy(subject, LITTLE, none)
    assert [one["answers"] for one in greedy.figures["ways"].values()] == [1] + [0] * len(names[1:])
    # What rounding moves is too little known from one short answer of random weights.
    check_greedy(subject, LITTLE, Deadline(None))
    cache = check_cache_state(subject, LITTLE, none)
    grammar = check_grammar(subject, LITTLE, none)
    for outcome in (greedy, cache, grammar):
        assert left in outcome.summary
        assert not outcome.complete
    assert (cache.faults, grammar.faults) == ((), ())
    sampled = check_sampled(subject, replace(LITTLE, places=3, samples=300), none)
    assert sampled.figures["places"] == 1
    assert {one["samples"] for one in sampled.figures["ways"].values()} == {100}
    assert not sampled.complete
    assert sampled.faults == ()
