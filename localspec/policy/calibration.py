"""Calibration: timing passes of a model over arbitrary tokens, for its cost curve T(n)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from localspec.decoding.sources import Cache, ModelSource
from localspec.policy.cost_curve import SIZES, CostCurve
from localspec.policy.profile import PairProfile

if TYPE_CHECKING:
    from localspec.llama.threads import Threads

WHOLE = (1.4, 0.35)
"""Seconds for the target and for the draft model in a calibration on request."""
FIRST = (0.3, 0.08)  # the same before a first answer
ROUNDS, FIRST_ROUND = 2, 0.6
"""How often each size is measured (its first pass builds a graph and, on a GPU, loads kernels);
share of the time for the first round, which decides how many sizes are measured."""
KEPT = 11  # sizes whose graphs are kept at a time (`localspec/kernels/graphs.cpp`)
FAR = (1, 4, 8)
"""Sizes measured after a long prompt, for the cost of the cache."""
LONG_PROMPT = 300  # tokens of a prompt that is long enough to measure it there

STEADY = 1.3  # largest ratio between two measurements of the first sizes on a steady machine
AGAIN = 0.01  # seconds for the second measurement, if the passes are short
IN_A_ROW, BRIEF = 4, 0.02
"""Plain passes in a row, if one takes fewer seconds than BRIEF. After a pass of another size
llama.cpp rebuilds its graph, and its CUDA backend replays a graph from the third pass on."""
SIMILAR = 1.6  # largest ratio between a known curve and a quick measurement
SHARE = 0.01  # share of decoding time for comparisons with a stored curve


def calibrate(passes: Cache, curve: CostCurve, budget: float) -> bool:
    """Measure T(n) within `budget` seconds, the most informative sizes first, each by its fastest
    round.

    The cache is left empty. Raises Cancelled, and learns nothing, if the passes are cancelled.

    Returns:
        Whether the machine was steady; if not, the curve should be measured again.
    """
    passes.clear()
    near: dict[int, float] = {}
    try:
        # Warm-up: the first passes allocate, and page the weights in.
        passes.extend(passes.filler(min(4, passes.capacity // 2)), 1)
        passes.extend(passes.filler(1), 1)
        held = len(passes.tokens)
        deadline = perf_counter() + budget
        sizes = [n for n in SIZES if n <= passes.max_draft + 1 and n + held <= passes.capacity]
        if not sizes:
            return True  # no room for drafts either
        for group in sizes[:KEPT], sizes[KEPT:]:
            begun, known = perf_counter(), {*near}
            measure(passes, group, near, begun + FIRST_ROUND * (deadline - begun))
            group = [n for n in near if n not in known]
            measure(passes, group, near, deadline, rounds=ROUNDS - 1)
        again: dict[int, float] = {}
        # A pass of some microseconds varies more, and costs little to repeat.
        rounds = max(ROUNDS, min(30, round(AGAIN / near[sizes[0]])))
        measure(passes, sizes[:2], again, rounds=rounds)
    finally:
        passes.clear()
    steady = all(1.0 / STEADY < again[n] / near[n] < STEADY for n in again)
    curve.forget()
    curve.learn({n: min(seconds, again.get(n, seconds)) for n, seconds in near.items()}, held)
    return steady


def calibrate_far(passes: Cache, curve: CostCurve, pace: float) -> None:
    """Measure the cost of the cache with its current contents, which are kept."""
    held = len(passes.tokens)
    far: dict[int, float] = {}
    try:
        measure(passes, FAR, far, rounds=ROUNDS)
    finally:
        passes.truncate(held)
    curve.learn({n: seconds / pace for n, seconds in far.items()}, held)


def matches_curve(passes: Cache, curve: CostCurve) -> bool:
    """Whether an earlier session's curve still fits at two sizes, with the current contents of the
    cache. These are kept unless the memory is recurrent."""
    if passes.recurrent:
        passes.clear()
    text = len(passes.tokens)
    if passes.capacity <= 16 + text:
        return True
    one, four = FAR[:2]
    now: dict[int, float] = {}
    try:
        if not text:
            passes.extend(passes.filler(4), 1)
        held = len(passes.tokens)
        for _ in range(ROUNDS):  # a single pass may be interrupted
            measure(passes, FAR[:2], now)
            off = (now[four] / now[one]) / (curve.seconds(four, held) / curve.seconds(one, held))
            if 1.0 / SIMILAR < off < SIMILAR:
                return True
    finally:
        passes.truncate(text) if text else passes.clear()
    return False


def measure(
    passes: Cache,
    sizes: Sequence[int],
    best: dict[int, float],
    deadline: float = math.inf,
    *,
    rounds: int = 1,
) -> None:
    """Measure the fastest pass of each size with the current cache contents, into `best`."""
    held, filler = len(passes.tokens), passes.filler(max(sizes, default=1))
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


class Calibration:
    """Calibrates a pair before its first answer, and again if the machine was busy.

    Args:
        threads: kept constant during a measurement.
        checked: whether the profile needs no comparison with the machine, because nothing in it
            is from an earlier session.
    """

    def __init__(self, profile: PairProfile, threads: Threads, *, checked: bool) -> None:
        self._profile, self._threads, self.checked = profile, threads, checked

    def run(
        self,
        target: Cache,
        models: Sequence[ModelSource],
        prompt: Sequence[int],
        known: int,
        keep: Callable[[], object],
        *,
        whole: bool = False,
    ) -> float:
        """Measure missing curves before an answer; returns the seconds it took.

        Args:
            target: cleared if its curve is measured, after a call of `keep`.
            known: tokens of the prompt in the target's cache; recalibration must not lose many.
            whole: measure everything, which can take two seconds, not only what an answer needs.
        """
        started, profile, measured = perf_counter(), self._profile, self._curves(target, models)
        fresh = not 4 * known > len(prompt)
        again = profile.uncertain and fresh
        wanted = [whole or again or not curve for _, curve in measured]
        with self._threads.hold_count():
            if not any(wanted) and not self.checked:
                takes = sum(3.0 * curve.seconds(4, 0) for _, curve in measured)
                if takes > SHARE * (profile.budget.seconds - profile.measured_at):
                    return 0.0  # postponed to a later answer, or session
                wanted = [not matches_curve(passes, curve) for passes, curve in measured]
                profile.measured_at = profile.budget.seconds
                if any(wanted) and not fresh:  # postponed to a later answer
                    profile.doubts = max(1, profile.doubts)
                    wanted = [False] * len(wanted)
            for number, model in enumerate(models, 1):
                wanted[number] = wanted[number] or self._overpriced(model)
            self.checked, steady = True, []
            for number, (passes, curve) in enumerate(measured):
                if wanted[number]:
                    if passes is target:
                        keep()
                    budget = (WHOLE if whole else FIRST)[min(number, 1)]
                    # While fewer threads are in use, large passes are relatively slower.
                    steady.append(calibrate(passes, curve, budget) and self._threads.all)
                    if passes is not target:
                        curve.set_pace(1.0 / profile.target.pace)
        if steady:
            profile.measured_at = profile.budget.seconds
            profile.doubts = 0 if all(steady) else profile.doubts + 1
        return perf_counter() - started

    def run_after_prompt(
        self,
        target: Cache,
        models: Sequence[ModelSource],
        prompt: Sequence[int],
        read: Callable[[], object],
    ) -> float:
        """Measure the cost of the cache after a long prompt, if unknown; returns the seconds it
        took, without the prefill. `read`: prefills all but the last token in the target."""
        spent = 0.0
        for passes, curve in self._curves(target, models):
            context = len(prompt) - 1 if passes is target else len(passes.tokens)
            fits = LONG_PROMPT <= context + 1 <= passes.capacity - max(FAR)
            if not curve or curve.two_lengths or passes.recurrent or not fits:
                continue
            if passes is target:
                read()
            started = perf_counter()
            with self._threads.hold_count():
                pace = curve.pace * (1.0 if passes is target else self._profile.target.pace)
                calibrate_far(passes, curve, pace)
            spent += perf_counter() - started
        return spent

    def _overpriced(self, model: ModelSource) -> bool:
        """Whether a model that was left out for its cost takes far less time now. As it runs no
        passes, nothing else would correct its curve."""
        source, passes = self._profile.source(model), model.cache
        held = len(passes.tokens)
        if not source.left_out or passes.recurrent or held + 4 > passes.capacity:
            return False
        price = source.costs.seconds(1, held) * source.costs.pace * self._profile.target.pace
        now: dict[int, float] = {}
        measure(passes, [1], now)
        return now[1] * SIMILAR < price

    def _curves(
        self, target: Cache, models: Sequence[ModelSource]
    ) -> list[tuple[Cache, CostCurve]]:
        of_models = [(model.cache, self._profile.source(model).costs) for model in models]
        return [(target, self._profile.target), *of_models]
