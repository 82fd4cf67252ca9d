"""The cost of a pass, measured on this machine and refined by live passes.

T(n, c) = a(n) + b(n) · c, for a pass over n tokens after c cached ones. a(n) is a table, as it need
not be monotone. b(n) = b₀ + b₁ · n is the cost of attention.
"""

import math
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from localspec.policy.baseline import Baseline
from localspec.policy.worth import Bid

SIZES = (1, 8, 4, 16, 2, 6, 3, 12, 5, 7, 32, 9, 10, 11, 13, 14, 20, 24, 28, 64)
"""Sizes of a pass worth measuring, the most informative ones first."""


@dataclass(eq=False)
class CostCurve:
    """Seconds of one pass over n tokens after c cached ones.

    A live pass moves the pace, one factor for all sizes, quickly, and the table slowly. So a busy
    second cancels out of decisions, while a lasting change of one size is learned.

    Attributes:
        sizes: the measured a(n).
        slope: b₀ and b₁.
        length: of the context at which the table was measured.
        two_lengths: whether passes were measured at two lengths of context.
        pace: current time of a pass, relative to the table.
        baseline: of plain passes; None until one has run since the pace was set.
        version: number of changes that invalidate derived costs.
        answers: how many share a pass; see `localspec.scheduling.shared_costs` for several.
    """

    PACE_RATE, PACE_CLIP = 0.1, 0.7
    TABLE_RATE, TABLE_CLIP = 0.03, 0.25
    FIRST_RATE = 0.3
    """Rate of the first live pass, and of the first of a size; it falls with the square root of
    their number."""
    PLAIN_RATE = 0.5  # rate at which a plain pass moves a doubtful pace
    SETTLE = 0.01
    """Share of the pace (as a logarithm) that the table absorbs every REFRESH passes."""
    REFRESH = 32
    TOLERANCE, NOISY = 0.05, 0.7
    """Largest unconfirmed change of the pace: as a logarithm, and in units of the noise."""
    FASTER = 4.0  # least ratio of the expected time to that of a pass that corrects it
    OVERDUE = 32  # passes over several tokens until a plain one has to confirm the baseline
    APART = 256  # minimum difference of two context lengths to measure the cost of the cache
    UNSURE, UNSURE_SLOPE = 0.05, 0.3
    """Relative uncertainty of a(n) and of b(n), for dividing an error between them."""
    TYPICAL = 4.0  # pass size at which b₁ · n is about b₀
    LEAST = 1e-7  # seconds of a pass, at least

    answers = 1

    sizes: dict[PositiveInt, PositiveFloat] = field(default_factory=dict)
    slope: tuple[NonNegativeFloat, NonNegativeFloat] = (0.0, 0.0)
    length: NonNegativeInt = 0
    two_lengths: bool = False

    def __post_init__(self) -> None:
        self.version = 0
        self._begin()
        self._stale = bool(self.sizes)  # of an earlier session

    def _begin(self) -> None:
        self._known = sorted(self.sizes)
        self._seen: dict[int, int] = {}
        self._passes = 0
        self._stale = False
        self.set_pace(1.0)
        self.version += 1

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def forget(self) -> None:
        self.sizes, self.slope, self.length, self.two_lengths = {}, (0.0, 0.0), 0, False
        self._begin()

    def refresh(self) -> None:
        """Update the number of answers that share the next pass."""

    def allocate(self, context: int, bid: Callable[[], Bid]) -> tuple[int, float] | None:
        """The number of candidates to verify, and the seconds of each, if answers share a pass;
        None for a single answer."""
        return None

    def set_pace(self, pace: float) -> None:
        """Reset the pace, that of plain passes included."""
        self.pace = self._confirmed = pace
        self.baseline: Baseline | None = None
        self._plain_at = 0  # tokens of context of the latest plain pass
        self._unconfirmed = 0  # passes over several tokens since the latest plain one

    def learn(self, measured: Mapping[int, float], context: int) -> None:
        """Learn calibrated seconds by size. The first context length sets the table, a second one
        the cost of the cache."""
        if not self.sizes:
            self.length = context
        both = {n: seconds for n, seconds in measured.items() if n in self.sizes}
        if both and abs(context - self.length) >= self.APART:
            self._fit_slope(both, context)
        else:
            both = {}
        fixed, each = self.slope
        for n, seconds in measured.items():
            if n not in both:
                self._set(n, max(0.5 * seconds, seconds - (fixed + each * n) * context))
        self.version += 1

    def seconds(self, n: int, context: int) -> float:
        """T(n, context), at the table's pace; 0 if unknown."""
        near = self.sizes.get(n)
        fixed, each = self.slope
        return (self._near(n) if near is None else near) + (fixed + each * n) * context

    def row(self, most: int, context: int) -> list[float]:
        """T(0) = 0, T(1) … T(most)."""
        sizes, last = np.arange(1, most + 1), self._known[-1]
        fixed, each = self.slope
        near = np.interp(sizes, self._known, [self.sizes[n] for n in self._known])
        near[last:] *= sizes[last:] / last  # as `_near`
        return [0.0, *(near + (fixed + each * sizes) * context).tolist()]

    def plain(self, context: int) -> float:
        """Current seconds of a plain pass, measured by plain passes only."""
        if self.baseline is None:
            # Slow passes over several tokens say nothing about plain ones.
            return self.seconds(1, context) * min(self.pace, self._confirmed)
        return self.baseline.now * self.seconds(1, context)

    def doubtful(self, context: int) -> bool:
        """Whether a plain pass has to confirm the baseline: other passes moved the pace far, or
        were too many in a row; or the latest plain one was an outlier, at another context length,
        or from an earlier session."""
        if self._stale or self._unconfirmed >= self.OVERDUE:
            return True
        tolerance = self.TOLERANCE
        if self.baseline is not None:
            if self.baseline.open or abs(context - self._plain_at) >= 2 * self.APART:
                return True
            tolerance = max(tolerance, self.NOISY * self.baseline.noise)
        return abs(math.log(self.pace / self._confirmed)) > tolerance

    def correct(self, n: int, context: int, seconds: float) -> None:
        """Adopt the pace of a live pass that is far faster than expected. Unlike a slow one, it was
        not interrupted, so the table was measured on a busy machine."""
        expected = self.seconds(n, context)
        if self.FASTER * seconds < expected * self.pace:
            self.set_pace(seconds / expected)

    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        """Learn from a live pass. `alike`: whether the pass before a plain one was plain, too."""
        if seconds <= 0.0:
            return
        if not self.sizes:
            self.learn({n: seconds}, context)
            return
        near, expected = self._near(n), self.seconds(n, context)
        rate = max(self.PACE_RATE, self.FIRST_RATE / math.sqrt(1 + self._passes))
        if n == 1:
            rate = self.PLAIN_RATE if self.doubtful(context) else rate
            if self.baseline is None:
                self.baseline = Baseline(min(self.pace, self._confirmed))
            seconds *= self.baseline.observe(seconds / expected, alike=alike) * expected / seconds
            self._plain_at, self._stale = context, False
        elif self.baseline is not None:
            self.baseline.interrupt()
        off = math.log(seconds / (expected * self.pace))
        self.pace *= math.exp(rate * _clipped(off, self.PACE_CLIP))
        if n == 1:
            self._confirmed, self._unconfirmed = self.pace, 0
        else:
            self._unconfirmed += 1
        seen = self._seen[n] = self._seen.get(n, 0) + 1
        rate = max(self.TABLE_RATE, self.FIRST_RATE / math.sqrt(seen))
        if n in self.sizes:
            clipped = _clipped(off, self.TABLE_CLIP)
        else:
            clipped = off  # it can cost a multiple of its neighbours
            self.version += 1
        moved = expected * (math.exp(rate * clipped) - 1.0)
        # In a short context the error is due to the table; in a long one perhaps to the slope.
        share = 0.0
        if context >= self.APART:
            unsure = self.UNSURE * near
            slope = max(expected - near, unsure * context / 512) * self.UNSURE_SLOPE
            share = slope * slope / (unsure * unsure + slope * slope)
        cached = expected - near
        if cached > near:  # implausible: measured while the machine was busy
            share = max(share, (cached - near) / expected)
        plain = self.plain(self._plain_at)  # must not change below
        self._move(n, near + moved * (1.0 - share))
        if share:
            relative = n / self.TYPICAL
            by = moved * share / context / (1.0 + relative * relative)
            fixed, each = self.slope
            self.slope = max(0.0, fixed + by), max(0.0, each + by * relative / self.TYPICAL)
        self._passes += 1
        if self._passes % self.REFRESH == 0:
            factor = self.pace**self.SETTLE
            for size, before in list(self.sizes.items()):
                self._move(size, before + (factor - 1.0) * self.seconds(size, context))
            self.pace /= factor
            self._confirmed /= factor
            self.version += 1
        if self.baseline is not None:
            self.baseline.now = plain / self.seconds(1, self._plain_at)

    def _set(self, n: int, seconds: float) -> None:
        if n not in self.sizes:
            insort(self._known, n)
        self.sizes[n] = max(seconds, self.LEAST)

    def _move(self, n: int, seconds: float) -> None:
        self._set(n, max(0.5 * self._near(n), seconds))

    def _fit_slope(self, measured: Mapping[int, float], context: int) -> None:
        """Fit b₀ and b₁ by least squares to the extra time over the table's context length."""
        sizes = list(measured)
        near = {n: self.seconds(n, self.length) for n in sizes}
        added = [max(0.0, (measured[n] - near[n]) / (context - self.length)) for n in sizes]
        each, fixed = np.polyfit(sizes, added, 1).tolist() if len(sizes) > 1 else (0.0, added[0])
        if each < 0.0:
            each, fixed = 0.0, float(np.mean(added))
        self.slope = slope = max(0.0, fixed), each
        for n in sizes:
            # With a nearly empty cache, its cost cannot dominate a pass.
            self._set(n, max(0.5 * near[n], near[n] - (slope[0] + slope[1] * n) * self.length))
        self.two_lengths = True

    def _near(self, n: int) -> float:
        """a(n): interpolated, and extrapolated in proportion beyond the largest size."""
        table, known = self.sizes, self._known
        if n in table:
            return table[n]
        if not known:
            return 0.0
        if n > known[-1]:
            return table[known[-1]] * n / known[-1]
        return float(np.interp(n, known, [table[k] for k in known]))


def _clipped(value: float, most: float) -> float:
    return max(-most, min(most, value))
