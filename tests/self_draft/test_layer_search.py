"""Which layers are left out, on made-up models."""

from __future__ import annotations

from collections.abc import Callable

from localspec.self_draft.draft_trial import search

LAYERS = range(1, 20)


def worth(free: set[int], gain: float = 0.05) -> Callable[[tuple[int, ...]], float]:
    """A model in which these layers do nothing, and each other one is dear."""

    def value(left_out: tuple[int, ...]) -> float:
        lost = set(left_out) - free
        return 1.0 + gain * len(left_out) - 0.2 * len(lost)

    return value


def test_all_that_do_nothing_are_left_out_and_no_others() -> None:
    free = {5, 6, 7, 12, 13}
    order = [*sorted(free), *(layer for layer in LAYERS if layer not in free)]
    found = search(order, worth(free), lambda: True)
    assert found == (5, 6, 7, 12, 13)
    assert worth(free)(found) == 1.25


def test_a_number_that_was_asked_for_is_kept() -> None:
    found = search([5, 6, 9, 7], worth({5, 6, 7}), lambda: True, count=3)
    assert found == (5, 6, 9)


def test_out_of_time_the_best_so_far_is_kept() -> None:
    tried: list[tuple[int, ...]] = []

    def value(left_out: tuple[int, ...]) -> float:
        tried.append(left_out)
        return 1.0

    found = search(list(LAYERS), value, lambda: len(tried) < 2)
    assert len(tried) == 2
    assert found in tried
