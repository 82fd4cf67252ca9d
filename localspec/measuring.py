"""When the cost of passes is measured: before the first answer, and again where that was a busy
time or no longer holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from localspec.decoding.sources import ModelSource
from localspec.drafters.composition import sources
from localspec.drafters.registry import Parts
from localspec.policy.calibration import (
    FAR,
    FIRST,
    LONG_PROMPT,
    WHOLE,
    MeasuredCache,
    affordable,
    agrees,
    calibrate,
    calibrate_far,
    calibrate_more,
    missing,
    seconds_to_agree,
)
from localspec.policy.cost_curve import CostCurve
from localspec.policy.profile import PairProfile
from localspec.policy.thread_use import ThreadUse

if TYPE_CHECKING:
    from localspec.llama.context import Context

CALIBRATIONS = 2
"""Most repetitions because the machine was busy."""
SHARE = 0.01
"""Of the seconds that answers take, what deferrable measuring may take."""


class Measuring:
    """Keeps the cost curves of a pair true.

    Args:
        threads: on which passes run; they stay while something is measured.
        checked: whether nothing in the profile is of another session. What is, is compared with the
            machine before it is believed.
    """

    def __init__(self, profile: PairProfile, threads: ThreadUse, *, checked: bool) -> None:
        self._profile = profile
        self._threads = threads
        self.checked = checked

    def near(
        self,
        target: Context,
        parts: Parts,
        prompt: Sequence[int],
        known: int,
        *,
        whole: bool = False,
    ) -> float:
        """Measure before an answer what is not known yet; returns the seconds it took.

        Args:
            target: it loses what it holds if anything is measured.
            parts: of the drafts, whose models' passes are measured as well.
            known: tokens of the prompt that the target holds; repeating must not cost these.
            whole: measure everything, which may take two seconds, instead of what an answer needs.
        """
        started, profile = perf_counter(), self._profile
        _, models = sources(parts)
        measured: list[tuple[MeasuredCache, CostCurve]] = [(target, profile.target)]
        measured += [(model.passes, profile.source(model).costs) for model in models]
        again = 0 < profile.doubts <= CALIBRATIONS and not 4 * known > len(prompt)
        curves = [profile.curves, *(profile.source(model).curves for model in models)]
        wanted = self._due(models, again)
        if whole:
            wanted = [
                due or bool(missing(*each)) for due, each in zip(wanted, measured, strict=True)
            ]
        if not any(wanted) and not self.checked:
            takes = sum(seconds_to_agree(curve) for _, curve in measured)
            if not whole and takes > self._spare:
                return 0.0  # another answer will do, or another session
            with self._threads.still():
                wanted = [not agrees(passes, curve) for passes, curve in measured]
            profile.measured_at = profile.budget.seconds
        self.checked = True
        steady = []
        for number, (passes, curve) in enumerate(measured):
            if wanted[number]:
                with self._threads.still():
                    budget = (WHOLE if whole else FIRST)[min(number, 1)]
                    steady.append(calibrate(passes, curve, budget))
                curves[number].measured()
        if steady:
            profile.measured_at = profile.budget.seconds
            profile.doubts = 0 if all(steady) else profile.doubts + 1
        return perf_counter() - started

    def behind(
        self,
        target: Context,
        parts: Parts,
        prompt: Sequence[int],
        progress: Callable[[int, int], None] | None,
    ) -> float:
        """Measure after the prompt what was not measured before: what the cache adds, if it is
        long, and further sizes; returns the seconds it took, without reading the prompt."""
        _, models = sources(parts)
        measured: list[tuple[MeasuredCache, CostCurve]] = [(target, self._profile.target)]
        measured += [(model.passes, self._profile.source(model).costs) for model in models]
        spent = 0.0
        for passes, curve in measured:
            if not curve or passes.recurrent:
                continue
            context = len(prompt) - 1 if passes is target else len(passes.tokens)
            long = not curve.two_lengths and context >= LONG_PROMPT - 1
            long = long and context + max(FAR) <= passes.capacity
            sizes = [] if long else affordable(passes, curve, context, self._spare)
            if not long and not sizes:
                continue
            if passes is target:  # all but what its first step begins with
                unread = prompt[len(target.tokens) : -1]
                if unread:
                    target.extend(unread, 0, progress)
            started = perf_counter()
            with self._threads.still():
                if long:
                    calibrate_far(passes, curve)
                else:
                    calibrate_more(passes, curve, sizes)
                    self._profile.measured_at = self._profile.budget.seconds
            spent += perf_counter() - started
        return spent

    @property
    def _spare(self) -> float:
        """Seconds that deferrable measuring may take now."""
        profile = self._profile
        return SHARE * max(0.0, profile.budget.seconds - profile.measured_at)

    def _due(self, models: Sequence[ModelSource], again: bool) -> list[bool]:
        """Of target and draft models: whether their costs are not known, or of a busy time."""
        profile, settled = self._profile, self._threads.settled
        curves = [profile.curves, *(profile.source(model).curves for model in models)]
        return [again or not c.now or (settled and c.borrowed) for c in curves]
