"""Measuring T(n) of a model on this device, with passes over a few arbitrary tokens."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from localspec.decoding.sampling import Rows
from localspec.policy.cost_curve import SIZES, CostCurve

WHOLE = (1.4, 0.35)
"""Seconds for the target and for the draft model where a measurement is asked for."""
FIRST = (0.3, 0.08)
"""The same before a first answer; the rest is measured later, see `calibrate_more`."""
CORE, ROUNDS = 11, 2
"""So many of SIZES, the first ones, are measured so often; where passes are BRIEF, all are."""
FAR, FAR_LENGTH = (1, 4, 8, 16), 520
"""Sizes measured at a second length of context, which tells what the cache adds."""
LONG_PROMPT = 300
"""Tokens of a prompt after which that can be measured as well."""

STEADY = 1.3
"""The first sizes, measured once more at the end, may be slower by so much."""
AGAIN = 0.01
"""Seconds for that, if the passes are so short."""
IN_A_ROW, BRIEF = 4, 0.02
"""Passes over one token in a row, where one takes fewer seconds than BRIEF. llama.cpp builds the
graph of a pass anew after one of another size, and its CUDA backend replays a recorded graph from
the third like it on: plain decoding pays for neither."""
SIMILAR = 1.6
"""A stored curve may differ by so much from what is measured in a moment."""


class MeasuredCache(Protocol):
    """Passes that can be measured, and the cache they fill; see
    `localspec.drafters.draft_cache.Cache`."""

    tokens: list[int]

    @property
    def capacity(self) -> int: ...

    @property
    def max_draft(self) -> int: ...

    @property
    def recurrent(self) -> bool:
        """Whether cutting it back may lose everything."""
        ...

    @property
    def native_seconds(self) -> float: ...

    def filler(self, count: int) -> list[int]:
        """So many tokens that cost what those of a text cost."""
        ...

    def extend(self, tokens: Sequence[int], outputs: int = 1) -> Rows:
        """Append tokens; logits after the last `outputs` of them."""
        ...

    def truncate(self, length: int) -> None:
        """Drop the tokens from `length` on."""
        ...

    def clear(self) -> None: ...


def calibrate(passes: MeasuredCache, curve: CostCurve, budget: float) -> bool:
    """Measure T(n), the most telling sizes first, in so many seconds. The cache is left empty.

    Each size takes its fastest round: what else the machine does can only slow a pass down.

    Returns:
        Whether the machine was steady. If not, the curve is better measured again.

    Raises:
        Cancelled: the passes were cancelled meanwhile; nothing is learned.
    """
    passes.clear()
    filler = passes.filler(max(SIZES))
    near: dict[int, float] = {}
    far: dict[int, float] = {}
    try:
        # The first passes allocate, and page the weights in.
        passes.extend(filler[: min(4, passes.capacity // 2)], 1)
        passes.extend(filler[:1], 1)
        held = len(passes.tokens)
        deadline = perf_counter() + budget
        sizes = [n for n in SIZES if n <= passes.max_draft + 1 and n + held <= passes.capacity]
        if not sizes:
            return True  # no room to draft in, either
        measure(passes, filler, sizes[:CORE], near, deadline, ROUNDS)
        # A GPU's first pass of a size may load kernels, which takes as long as the pass.
        rounds = ROUNDS if near[max(near)] < BRIEF else 1
        measure(passes, filler, sizes[CORE:], near, deadline, rounds)
        again: dict[int, float] = {}
        # A pass of some microseconds meets more hiccups, and is soon done again.
        rounds = max(ROUNDS, min(30, round(AGAIN / near[sizes[0]])))
        measure(passes, filler, sizes[:2], again, float("inf"), rounds)
        length = FAR_LENGTH
        # A prompt of that length costs about what its tokens do in the largest pass known.
        largest = max(near)
        fill = near[largest] / largest * length
        if (
            length + 64 < passes.capacity
            and not passes.recurrent
            and perf_counter() + fill < deadline
        ):
            while len(passes.tokens) < length:
                passes.extend(filler[: min(64, length - len(passes.tokens))], 1)
            measure(passes, filler, [n for n in FAR if n in near], far, deadline)
    finally:
        passes.clear()
    curve.forget()
    curve.learn(near, held)
    steady = all(near[n] * STEADY > again[n] for n in again)
    if all(n in far for n in FAR[:2]):
        curve.learn(far, length)
    return steady


def calibrate_far(passes: MeasuredCache, curve: CostCurve) -> None:
    """Measure what the cache adds after the text that it holds, which stays.

    Raises:
        Cancelled: the passes were cancelled meanwhile; nothing is learned.
    """
    held = len(passes.tokens)
    far: dict[int, float] = {}
    try:
        measure(passes, passes.filler(max(FAR[:3])), list(FAR[:3]), far, float("inf"))
    finally:
        passes.truncate(held)
    curve.learn({n: seconds / curve.pace for n, seconds in far.items()}, held)


def missing(passes: MeasuredCache, curve: CostCurve) -> list[int]:
    """Sizes that there was no time for yet, the most telling one first."""
    return [n for n in SIZES[:CORE] if n <= passes.max_draft + 1 and not curve.knows(n)]


def affordable(passes: MeasuredCache, curve: CostCurve, context: int, seconds: float) -> list[int]:
    """Missing sizes that can be measured after so many tokens in so many seconds, with a plain pass
    beside them."""
    left = seconds - curve.seconds(1, context) * curve.pace
    found = []
    for n in missing(passes, curve):
        left -= curve.seconds(n, context) * curve.pace
        if left < 0.0 or context + n > passes.capacity:
            break
        found.append(n)
    return found


def calibrate_more(passes: MeasuredCache, curve: CostCurve, sizes: Sequence[int]) -> None:
    """Measure further sizes after the text that the cache holds, which stays. A plain pass beside
    them tells the present pace.

    Raises:
        Cancelled: the passes were cancelled meanwhile; nothing is learned.
    """
    held = len(passes.tokens)
    found: dict[int, float] = {}
    try:
        measure(passes, passes.filler(max(sizes)), [1, *sizes], found, float("inf"))
    finally:
        passes.truncate(held)
    pace = found.pop(1) / curve.seconds(1, held)
    curve.learn({n: seconds / pace for n, seconds in found.items()}, held)


def agrees(passes: MeasuredCache, curve: CostCurve) -> bool:
    """Whether a curve of an earlier session still fits at two points. The cache is left empty.

    Raises:
        Cancelled: the passes were cancelled meanwhile.
    """
    passes.clear()
    if passes.capacity <= 16:
        return True
    one, four = SIZES[:2]
    filler = passes.filler(8)
    now: dict[int, float] = {}
    try:
        passes.extend(filler[:4], 1)
        for _ in range(ROUNDS):  # one pass alone may meet a hiccup
            measure(passes, filler, [one, four], now, float("inf"))
            off = (now[four] / now[one]) / (curve.seconds(four, 0) / curve.seconds(one, 0))
            if 1.0 / SIMILAR < off < SIMILAR:
                return True
    finally:
        passes.clear()
    return False


def seconds_to_agree(curve: CostCurve) -> float:
    """What `agrees` takes where it does."""
    one, four = SIZES[:2]
    return (curve.seconds(one, 0) + 2.0 * curve.seconds(four, 0)) * curve.pace


def measure(
    passes: MeasuredCache,
    filler: list[int],
    sizes: list[int],
    best: dict[int, float],
    deadline: float,
    rounds: int = 1,
) -> None:
    """Fastest pass of each size after what the cache holds now."""
    held = len(passes.tokens)
    for _ in range(rounds):
        for n in sizes:
            known = best.get(n) or min((s / k for k, s in best.items()), default=0.0) * n
            if perf_counter() + known > deadline and len(best) >= 2:
                return
            for _ in range(IN_A_ROW if n == 1 else 1):
                before = passes.native_seconds
                passes.extend(filler[:n], n)
                seconds = passes.native_seconds - before
                best[n] = min(best.get(n, seconds), seconds)
                passes.truncate(held)
                if seconds > BRIEF:
                    break
