"""What passes take undisturbed, learned from disturbed ones too."""

from __future__ import annotations

import pytest

from localspec.policy.usual_times import STRETCH, UsualTimes


def test_nothing_is_known_of_passes_that_never_ran() -> None:
    times = UsualTimes()
    times.learn(2, "target", 1, 0, 0.01)
    assert times.seconds(1, "target", 1, 0) is None
    assert times.seconds(2, "draft", 1, 0) is None
    assert times.seconds(2, "target", 4, 0) is None
    assert times.price(1, 2) is None


def test_a_disturbance_moves_it_by_little_and_a_first_slow_pass_is_soon_forgotten() -> None:
    times = UsualTimes()
    times.learn(2, "target", 1, 0, 1.0)  # pages the weights in
    for _ in range(12):
        times.learn(2, "target", 1, 0, 0.01)
    assert times.seconds(2, "target", 1, 0) == pytest.approx(0.01, rel=0.05)
    for _ in range(5):
        times.learn(2, "target", 1, 0, 0.4)
    assert times.seconds(2, "target", 1, 0) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("tokens", [1, 4, 100])
def test_learning_tells_what_was_known_before(tokens: int) -> None:
    times = UsualTimes()
    assert times.learn(2, "target", tokens, 0, 0.01) is None
    for context, seconds in ((0, 0.02), (0, 0.005), (5 * STRETCH, 0.03), (5 * STRETCH, 0.01)):
        before = times.seconds(2, "target", tokens, context)
        assert times.learn(2, "target", tokens, context, seconds) == before


def test_chunks_are_known_by_the_token() -> None:
    times = UsualTimes()
    times.learn(2, "target", 64, 0, 0.64)
    assert times.per_token(2, "target", 0) == pytest.approx(0.01)
    assert times.seconds(2, "target", 100, 0) == pytest.approx(1.0)


def test_a_longer_context_begins_with_what_is_known_of_a_shorter_one() -> None:
    times = UsualTimes()
    times.learn(2, "target", 1, 0, 0.01)
    assert times.seconds(2, "target", 1, 5 * STRETCH) == pytest.approx(0.01)
    times.learn(2, "target", 1, STRETCH, 0.5)
    found = times.seconds(2, "target", 1, STRETCH)
    assert found is not None
    assert found <= 0.0131, "a pass that stumbles there is no longer context"


def test_price_compares_passes_of_one_kind() -> None:
    times = UsualTimes()
    times.learn(2, "target", 1, 0, 0.01)
    times.learn(1, "target", 4, 0, 9.0)
    assert times.price(1, 2) is None
    times.learn(1, "target", 1, 0, 0.018)
    assert times.price(1, 2) == pytest.approx(1.8)
    assert times.price(2, 1) == pytest.approx(1 / 1.8)
