"""Which layers a draft can do without: a small search over acceptance and cost.

After Zhang et al. 2024 (Draft & Verify, section 3.2), who use Bayesian optimisation over hours.
Here it has a minute: layers are taken in the order of how little they change (Men et al. 2024,
ShortGPT), a few numbers of them are tried, then single ones are exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

HOPEFUL = 0.9
"""Exchanging layers raises the acceptance a little; what brings less than this is left."""


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
        value: the speed-up of a choice; takes as long as the texts take to read.
        going_on: whether there is time for another trial; the first one is made anyway.
        count: how many have to be left out; None for whatever is best.
    """
    known: dict[tuple[int, ...], float] = {}

    def tried(choice: Sequence[int]) -> float | None:
        ordered = tuple(sorted(choice))
        if ordered not in known:
            if known and not going_on():
                return None
            known[ordered] = value(ordered)
        return known[ordered]

    if count is not None:
        tried(order[:count])
    else:
        _numbers(order, tried, known)
    best = max(known, key=lambda choice: known[choice])
    while known[best] >= HOPEFUL or count is not None:
        better = _exchanged(best, order, tried, known[best])
        if better is None:
            break
        best = better
    return LayerChoice(best, known[best])


def _numbers(
    order: Sequence[int],
    tried: Callable[[Sequence[int]], float | None],
    known: dict[tuple[int, ...], float],
) -> None:
    """Try a few numbers of layers far apart, then those between, around the best one."""
    most = max(1, len(order) * 2 // 3)
    step = max(1, most // 4)
    numbers, around = list(range(step, most + 1, step)), 0
    while True:
        for number in numbers:
            if 1 <= number <= most and tried(order[:number]) is None:
                return
        best = len(max(known, key=lambda choice: known[choice]))
        if step == 1 and best == around:
            return
        step, around = max(1, step // 2), best
        numbers = [best - step, best + step]


def _exchanged(
    best: tuple[int, ...],
    order: Sequence[int],
    tried: Callable[[Sequence[int]], float | None],
    value: float,
) -> tuple[int, ...] | None:
    """The first exchange of one layer that is better: what matters most of those that are left out,
    for
    what matters least of those that are not."""
    others = [layer for layer in order if layer not in best]
    for back in sorted(best, key=order.index, reverse=True):
        for out in others[:3]:
            choice = tuple(sorted({*best, out} - {back}))
            outcome = tried(choice)
            if outcome is None:
                return None
            if outcome > value:
                return choice
    return None
