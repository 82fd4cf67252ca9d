"""When what passes cost is measured: before the first answer, and again where that was a busy
time or holds no longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from localspec.decoding.auto_sources import ModelSource
from localspec.drafters.composition import sources
from localspec.drafters.registry import Parts
from localspec.planning.calibration import (
    BUDGETS,
    FAR,
    LONG_PROMPT,
    MeasuredCache,
    agrees,
    calibrate,
    calibrate_far,
)
from localspec.planning.costs import CostCurve
from localspec.planning.pair_profile import PairProfile
from localspec.planning.thread_use import ThreadUse

if TYPE_CHECKING:
    from localspec.llama.context import Context

CALIBRATIONS = 2
"""Most times that passes are measured once more because the machine was busy meanwhile."""


class Measuring:
    """Keeps the cost curves of a pair true.

    Args:
        profile: whose curves they are.
        threads: on which the passes run; they stay as they are while something is measured.
        checked: whether nothing in the profile was measured in another session. What was is
            compared with the machine before it is believed.
    """

    def __init__(self, profile: PairProfile, threads: ThreadUse, *, checked: bool) -> None:
        self._profile = profile
        self._threads = threads
        self.checked = checked

    def near(self, target: Context, parts: Parts, prompt: Sequence[int], known: int) -> float:
        """Measure what passes cost where that is not known yet; returns the seconds it took.

        Once more after a busy time, but not at the cost of what the cache holds of the prompt.

        Args:
            target: whose passes are measured; it loses what it holds if anything is.
            parts: of the drafts, whose models' passes are measured as well.
            known: tokens of the prompt that the target holds.
        """
        started, profile = perf_counter(), self._profile
        _, models = sources(parts)
        measured: list[tuple[MeasuredCache, CostCurve]] = [(target, profile.target)]
        measured += [(model.passes, profile.source(model).costs) for model in models]
        again = 0 < profile.doubts <= CALIBRATIONS and not 4 * known > len(prompt)
        curves = [profile.curves, *(profile.source(model).curves for model in models)]
        wanted = self._due(models, again)
        if not any(wanted) and not self.checked:
            with self._threads.still():
                wanted = [not agrees(passes, curve) for passes, curve in measured]
        self.checked = True
        steady = []
        for number, (passes, curve) in enumerate(measured):
            if wanted[number]:
                with self._threads.still():
                    steady.append(calibrate(passes, curve, BUDGETS[min(number, 1)]))
                curves[number].measured()
        if steady:
            profile.doubts = 0 if all(steady) else profile.doubts + 1
        return perf_counter() - started

    def far(
        self,
        target: Context,
        parts: Parts,
        prompt: Sequence[int],
        progress: Callable[[int, int], None] | None,
    ) -> float:
        """Measure behind a long prompt what was measured behind a short text only; returns the
        seconds it took, without reading the prompt."""
        _, models = sources(parts)
        measured: list[tuple[MeasuredCache, CostCurve]] = [(target, self._profile.target)]
        measured += [(model.passes, self._profile.source(model).costs) for model in models]
        spent = 0.0
        for passes, curve in measured:
            if not curve or curve.two_lengths or passes.recurrent or len(prompt) < LONG_PROMPT:
                continue
            if passes is target:  # all but what its first step begins with
                missing = prompt[len(target.tokens) : -1]
                if missing:
                    target.extend(missing, 0, progress)
            held = len(passes.tokens)
            if held < LONG_PROMPT - 1 or held + max(FAR) > passes.capacity:
                continue
            started = perf_counter()
            with self._threads.still():
                calibrate_far(passes, curve)
            spent += perf_counter() - started
        return spent

    def _due(self, models: Sequence[ModelSource], again: bool) -> list[bool]:
        """Of target and draft models: whether theirs are not known, or of a busy time."""
        profile, settled = self._profile, self._threads.settled
        curves = [profile.curves, *(profile.source(model).curves for model in models)]
        return [again or not c.now or (settled and c.borrowed) for c in curves]
