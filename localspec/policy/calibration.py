"""Measuring T(n) of a model on this device, with passes over a few arbitrary tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from localspec.decoding.caches import Cache
from localspec.decoding.sources import ModelSource
from localspec.policy.cost_curve import SIZES, CostCurve
from localspec.policy.profile import PairProfile

if TYPE_CHECKING:
    from localspec.llama.threads import Threads

WHOLE = (1.4, 0.35)
"""Seconds for the target and for the draft model where a measurement is asked for."""
FIRST = (0.3, 0.08)  # the same before a first answer
CORE, ROUNDS = 11, 2
"""So many of SIZES, the first ones, are measured so often; where passes are BRIEF, all are."""
FAR, FAR_LENGTH = (1, 4, 8, 16), 520
"""Sizes measured at a second length of context, which tells what the cache adds."""
LONG_PROMPT = 300  # tokens of a prompt after which that can be measured as well

STEADY = 1.3  # the first sizes, measured once more at the end, may differ by so much
AGAIN = 0.01  # seconds for that, if the passes are so short
IN_A_ROW, BRIEF = 4, 0.02
"""Plain passes in a row, where one takes fewer seconds. After one of another size llama.cpp builds
the graph of a pass anew, and its CUDA backend replays a graph from the third pass on."""
SIMILAR = 1.6  # a stored curve may differ by so much from what is measured in a moment
REPEATED = 2  # times that a calibration is repeated because the machine was busy
SHARE = 0.01  # of the seconds that answers take, what comparing a stored curve may take


def calibrate(passes: Cache, curve: CostCurve, budget: float) -> bool:
    """Measure T(n) within `budget` seconds, the most telling sizes first, each by its fastest
    round.

    The cache is left empty. Raises Cancelled, and learns nothing, if the passes are cancelled.

    Returns:
        Whether the machine was steady. If not, the curve is better measured again.
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
    steady = all(1.0 / STEADY < again[n] / near[n] < STEADY for n in again)
    curve.forget()
    curve.learn({n: min(seconds, again.get(n, seconds)) for n, seconds in near.items()}, held)
    if all(n in far for n in FAR[:2]):
        curve.learn(far, length)
    return steady


def calibrate_far(passes: Cache, curve: CostCurve, pace: float) -> None:
    """Measure what the cache adds after the text that it holds, which stays."""
    held = len(passes.tokens)
    far: dict[int, float] = {}
    try:
        measure(passes, passes.filler(max(FAR[:3])), list(FAR[:3]), far, float("inf"))
    finally:
        passes.truncate(held)
    curve.learn({n: seconds / pace for n, seconds in far.items()}, held)


def agrees(passes: Cache, curve: CostCurve) -> bool:
    """Whether a curve of an earlier session still fits at two points after the text that the cache
    holds, which stays unless the memory is recurrent."""
    if passes.recurrent:
        passes.clear()
    text = len(passes.tokens)
    if passes.capacity <= 16 + text:
        return True
    one, four = SIZES[:2]
    filler = passes.filler(8)
    now: dict[int, float] = {}
    try:
        if not text:
            passes.extend(filler[:4], 1)
        held = len(passes.tokens)
        for _ in range(ROUNDS):  # one pass alone may meet a hiccup
            measure(passes, filler, [one, four], now, float("inf"))
            off = (now[four] / now[one]) / (curve.seconds(four, held) / curve.seconds(one, held))
            if 1.0 / SIMILAR < off < SIMILAR:
                return True
    finally:
        passes.truncate(text) if text else passes.clear()
    return False


def measure(
    passes: Cache,
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


class Calibration:
    """When passes of a pair are measured: before the first answer, and again after a busy time.

    Args:
        threads: stay while something is measured.
        checked: whether nothing in the profile is of another session, which has to be compared with
            the machine.
    """

    def __init__(self, profile: PairProfile, threads: Threads, *, checked: bool) -> None:
        self._profile, self._threads, self.checked = profile, threads, checked

    def run(
        self,
        target: Cache,
        models: Sequence[ModelSource],
        prompt: Sequence[int],
        known: int,
        *,
        whole: bool = False,
    ) -> float:
        """Measure before an answer what is not known yet; returns the seconds it took.

        Args:
            target: it loses what it holds if its curve is measured.
            known: tokens of the prompt that the target holds; measuring again must not cost these.
            whole: measure everything, which may take two seconds, instead of what an answer needs.
        """
        started, profile, measured = perf_counter(), self._profile, self._curves(target, models)
        fresh = not 4 * known > len(prompt)
        again = 0 < profile.doubts <= REPEATED and fresh
        wanted = [whole or again or not curve for _, curve in measured]
        with self._threads.hold_count():
            if not any(wanted) and not self.checked:
                takes = sum(3.0 * curve.seconds(4, 0) for _, curve in measured)
                if takes > SHARE * (profile.budget.seconds - profile.measured_at):
                    return 0.0  # another answer will do, or another session
                wanted = [not agrees(passes, curve) for passes, curve in measured]
                profile.measured_at = profile.budget.seconds
                if any(wanted) and not fresh:  # another answer will do
                    profile.doubts = max(1, profile.doubts)
                    wanted = [False] * len(wanted)
            self.checked, steady = True, []
            for number, (passes, curve) in enumerate(measured):
                if wanted[number]:
                    budget = (WHOLE if whole else FIRST)[min(number, 1)]
                    # On fewer threads, for now, a pass over many tokens costs more beside one.
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
        """Measure after a long prompt what the cache adds, where that is not known. `read` has the
        target read all but the last token. Returns the seconds it took, without reading."""
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

    def _curves(
        self, target: Cache, models: Sequence[ModelSource]
    ) -> list[tuple[Cache, CostCurve]]:
        of_models = [(model.cache, self._profile.source(model).costs) for model in models]
        return [(target, self._profile.target), *of_models]
