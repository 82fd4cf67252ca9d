"""How many layers a draft can do without.

After Zhang et al. 2024 (Draft & Verify, section 3.2). Layers are left out in the order of how
little they change (Men et al. 2024, ShortGPT); only their number is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class LayerChoice(NamedTuple):
    """Layers that are left out, in order, and the predicted speed-up."""

    left_out: tuple[int, ...]
    value: float


def search(
    order: Sequence[int],
    value: Callable[[tuple[int, ...]], float],
    going_on: Callable[[], bool],
    *,
    count: int | None = None,
) -> LayerChoice:
    """The best choice that there was time for.

    Args:
        order: layers that may be left out, those that matter least first.
        value: the speed-up of a choice; slow.
        going_on: whether there is time for another trial after the first.
        count: how many have to be left out; None for whatever is best.
    """
    most = max(1, len(order) * 2 // 3)
    step = max(1, most // 4)
    # A few numbers far apart, then those between, around the best one.
    waiting = list(range(step, most + 1, step)) if count is None else [count]
    known: dict[int, LayerChoice] = {}
    while waiting and (not known or going_on()):
        number = waiting.pop(0)
        left_out = tuple(sorted(order[:number]))
        known[number] = LayerChoice(left_out, value(left_out))
        if not waiting and count is None:
            best = max(known, key=lambda each: known[each].value)
            step = max(1, step // 2)
            around = (best - step, best + step)
            waiting = [each for each in around if 1 <= each <= most and each not in known]
    return max(known.values(), key=lambda choice: choice.value)
