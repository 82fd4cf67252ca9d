"""What a pass costs: T(n, c), measured on this machine and refined while it is used; and what
verifying so many tokens costs at one place of a text.

T(n, c) = a(n) + b(n) · c, for a pass over n tokens behind c cached ones. a(n) is neither linear nor
even monotone: kernels work in tiles, so a pass over 4 tokens can cost less than one over 3; it is a
table. What attention adds grows with the cache, the more so the more tokens look at it, so
b(n) = b₀ + b₁ · n: two numbers, which any pass at any length tells something about.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Any

import numpy as np

from localspec.planning.plain_pace import PlainPace
from localspec.planning.size_change import SizeChange

SIZES = (1, 4, 2, 3, 8, 5, 6, 16, 7, 12, 32, 9, 10, 11, 13, 14, 20, 24, 28, 64)
"""Sizes of a pass worth measuring, the most telling ones first."""


class CostCurve:
    """Seconds of one pass over n tokens behind c cached ones.

    Two things move a measured time: what this pass costs on this machine (the table), and how
    fast the machine is just now (the pace, one factor for all sizes). A live step moves the pace
    quickly and the table slowly, and no single step moves either far. So a second in which another
    process takes a core shifts the pace, which cancels out of every decision, and leaves the table
    as it was; a lasting change of one size gets through.

    Attributes:
        pace: how much slower than the table the machine is at present.
        plain_pace: that of plain passes; None where none ran since the pace was set.
        size_change: what plain passes take longer behind one of another size; it is taken off them.
        version: counts the refreshes; what was worked out from an older one is out of date.
        two_lengths: whether passes were calibrated at two lengths of context; until then what the
            cache adds is known from live passes alone.
    """

    PACE_RATE, PACE_CLIP = 0.1, 0.7
    TABLE_RATE, TABLE_CLIP = 0.03, 0.25
    SETTLE = 0.01
    """Share of the pace (as a logarithm) that the table takes over with each refresh. Without that
    a pass in thirty that takes far longer than usual, by which the two are moved unequally far,
    drives them apart for ever, and the table to 0."""
    FIRST_RATE = 0.3
    """Rate of the first live pass of a size, falling with the root of how many there were; a
    calibration has seen it once or twice only."""
    PLAIN_RATE = 0.5
    """Rate at which a plain pass moves the pace where the others have led it astray."""
    TOLERANCE, NOISY = 0.05, 0.7
    """So far (as a logarithm), or so many times the noise of plain passes, the pace may move until
    a plain pass has to confirm it."""
    OVERDUE = 32
    """Passes over several tokens until a plain one has to confirm what a plain one takes."""
    REFRESH = 32
    """Live passes between two refreshes of what `seconds` answers; a pass moves it by little."""
    LEAST = 1e-7
    """Seconds of a pass, whatever comes."""
    APART = 256
    """Tokens that two lengths have to lie apart to tell what the cache costs."""
    UNSURE = 0.05
    """Relative uncertainty of a(n), for sharing out an error between a(n) and b(n)."""
    UNSURE_SLOPE, TYPICAL = 0.3, 4
    """The same of b(n), and tokens of a pass that is typical for it."""

    def __init__(self) -> None:
        self.version = 0
        self.forget()

    def __bool__(self) -> bool:
        return bool(self._table)

    def forget(self) -> None:
        """Drop everything that was measured."""
        self._table: dict[int, float] = {}
        self._known: list[int] = []
        self._slope = (0.0, 0.0)
        self.two_lengths = False
        self._length = 0  # of the context at which the table was measured
        self._seen: dict[tuple[int, int], int] = {}
        self._passes = 0
        self._stale = False  # of an earlier session
        self.size_change = SizeChange()
        self.set_pace(1.0)
        self._refresh()

    def knows(self, n: int) -> bool:
        """Whether a pass over n tokens was ever measured; what it takes is guessed else."""
        return n in self._table

    def learn(self, measured: Mapping[int, float], context: int) -> None:
        """Take over calibrated seconds by pass size, at so many tokens of context. The first
        length that is learned makes the table, another one what the cache costs."""
        if not self._table:
            self._length = context
        both = [n for n in measured if n in self._table]
        if both and abs(context - self._length) >= self.APART:
            self._learn_slope({n: measured[n] for n in both}, context)
        else:
            both = []
        for n, seconds in measured.items():
            if n in both:
                continue
            if n not in self._table:
                insort(self._known, n)
            self._table[n] = max(0.5 * seconds, seconds - self._at(n, context, self._slope))
        self._refresh()

    def seconds(self, n: int, context: int) -> float:
        """T(n, context), at the table's pace; 0 where nothing is known."""
        found = self._answers.get(n)
        if found is None:
            found = self._answers[n] = self._interpolated(n)
        fixed, each = self._shown
        return found + (fixed + each * n) * context

    def plain(self, context: int) -> float:
        """Seconds of a plain pass at present, as plain passes themselves tell: those over several
        tokens move the table and the pace, and may have changed for reasons of their own."""
        if self.plain_pace is None:
            # That passes over several tokens are slower than thought tells nothing of plain ones,
            # and taken for it would make losses look smaller.
            return self.seconds(1, context) * min(self.pace, self._confirmed)
        return self.plain_pace.now * self.seconds(1, context)

    def set_pace(self, pace: float) -> None:
        """Begin at another pace, for plain passes as well."""
        self.pace = self._confirmed = pace
        self.plain_pace: PlainPace | None = None
        self._plain_at = 0  # tokens of context of the latest plain pass
        self._unconfirmed = 0  # passes over several tokens since the latest plain one

    def strayed(self, context: int) -> bool:
        """Whether the latest plain pass was behind a text of so different a length that what it
        took says too little of plain ones here: what the cache adds is known less well than what
        the pass itself takes."""
        apart = abs(context - self._plain_at)
        if apart < self.APART or self.plain_pace is None:
            return False
        if not self.two_lengths:
            return apart >= 2 * self.APART
        adds = (self._shown[0] + self._shown[1]) * apart
        return self.UNSURE_SLOPE * adds > self.TOLERANCE * self.seconds(1, context)

    @property
    def doubtful(self) -> bool:
        """Whether only a plain pass can tell how fast the machine is: passes over several tokens
        have moved the pace far, and may have changed by themselves; or there were only such for
        long; or the latest plain one was strange, or stood behind a pass of another size while
        nobody knows what that costs; or this session has seen none yet."""
        if self._stale or self._unconfirmed >= self.OVERDUE:
            return True
        tolerance = self.TOLERANCE
        if self.plain_pace is not None:
            if self.plain_pace.open or self.size_change.open:
                return True
            tolerance = max(tolerance, self.NOISY * self.plain_pace.noise)
        return abs(math.log(self.pace / self._confirmed)) > tolerance

    def row(self, most: int, context: int) -> list[float]:
        """T(0) = 0, T(1) … T(most): for a planner that looks many of them up."""
        if not self._table or most > self._curve[0][-1]:
            return [0.0, *(self.seconds(n, context) for n in range(1, most + 1))]
        sizes = np.arange(1, most + 1)
        fixed, each = self._shown
        near = np.interp(sizes, *self._curve)
        return [0.0, *(near + (fixed + each * sizes) * context).tolist()]

    def observe(self, n: int, context: int, seconds: float, *, alike: bool = True) -> None:
        """Learn from a live pass.

        Args:
            alike: whether the pass before it was over as many tokens; of plain passes alone.
        """
        if seconds <= 0.0:
            return
        if not self._table:
            self.learn({n: seconds}, context)
            return
        if n == 1:
            self.size_change.observe(seconds / self.seconds(1, context), alike=alike)
            seconds /= 1.0 if alike else self.size_change.factor
        else:
            self.size_change.interrupt()
        near, more = self._interpolated(n), self._at(n, context, self._slope)
        expected = near + more
        off = math.log(seconds / (expected * self.pace))
        rate = self.PACE_RATE
        if n == 1 and self.doubtful:
            rate = self.PLAIN_RATE
        if n == 1:
            if self.plain_pace is None:
                self.plain_pace = PlainPace(min(self.pace, self._confirmed))
            self.plain_pace.observe(seconds / self.seconds(1, context))
            self._plain_at = context
            self._stale = False
        self.pace *= math.exp(rate * max(-self.PACE_CLIP, min(self.PACE_CLIP, off)))
        if n == 1:
            self._confirmed, self._unconfirmed = self.pace, 0
        else:
            self._unconfirmed += 1
        key = n, context.bit_length()
        seen = self._seen[key] = self._seen.get(key, 0) + 1
        rate = max(self.TABLE_RATE, self.FIRST_RATE / math.sqrt(seen))
        off = max(-self.TABLE_CLIP, min(self.TABLE_CLIP, off))
        moved = expected * (math.exp(rate * off) - 1.0)
        # Near the beginning the error is that of the table; deep in a text it may be the cache's.
        unsure = (self.UNSURE * near) ** 2
        slope = max(more, self.UNSURE * near * context / 512) * self.UNSURE_SLOPE
        share = slope * slope / (unsure + slope * slope) if context >= self.APART else 0.0
        if more > near > 0.0:  # so much it cannot be: it was measured in a busy moment
            share = max(share, (more - near) / expected)
        if n not in self._table:
            insort(self._known, n)
        self._table[n] = self._bounded(near, near + moved * (1.0 - share))
        if share:
            # b₁ · n is about b₀ where n is TYPICAL: small passes tell of b₀, large ones of both.
            relative = n / self.TYPICAL
            by = moved * share / context / (1.0 + relative * relative)
            fixed, each = self._slope
            self._slope = max(0.0, fixed + by), max(0.0, each + by * relative / self.TYPICAL)
        self._passes += 1
        if self._passes % self.REFRESH == 0:
            self._settle(context)
            self._refresh()

    def _bounded(self, before: float, after: float) -> float:
        """A new a(n). What the cache adds may be more, and an error is of both."""
        return max(0.5 * before, after, self.LEAST)

    def _settle(self, context: int) -> None:
        """Move some of the pace into the table; at this length passes take what they did before."""
        factor = self.pace**self.SETTLE
        for n, near in self._table.items():
            whole = near + self._at(n, context, self._slope)
            self._table[n] = self._bounded(near, near + (factor - 1.0) * whole)
        self.pace /= factor
        self._confirmed /= factor

    def as_dict(self) -> dict[str, Any]:
        """For the store: seconds by size with an empty cache, and what a cached token adds."""
        return {
            "sizes": {str(n): self._table[n] for n in self._known},
            "cached": list(self._slope),
            "length": self._length,
            "two_lengths": self.two_lengths,
            "size_change": self.size_change.as_dict(),
        }

    @classmethod
    def from_dict(cls, stored: Any) -> CostCurve:
        """The opposite of `as_dict`.

        Raises:
            ValueError: not such a record.
        """
        curve = cls()
        try:
            table = {int(n): float(seconds) for n, seconds in stored["sizes"].items()}
            fixed, each = (float(part) for part in stored["cached"])
            length, two_lengths = int(stored["length"]), bool(stored["two_lengths"])
            curve.size_change = SizeChange.from_dict(stored["size_change"])
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None
        if not all(n > 0 and 0.0 < s < math.inf for n, s in table.items()):
            raise ValueError("a pass of no tokens, or one that takes no time")
        if not (0.0 <= fixed < math.inf and 0.0 <= each < math.inf and length >= 0):
            raise ValueError("no such cost of the cache")
        curve._table, curve._known = table, sorted(table)
        curve._slope, curve._length = (fixed, each), length
        curve.two_lengths = two_lengths
        curve._stale = bool(table)
        curve._refresh()
        return curve

    def _refresh(self) -> None:
        # Both move before the next refresh, and what is answered must not.
        plain = 0.0 if self.plain_pace is None else self.plain(self._plain_at)
        self._answers, self._shown = dict(self._table), self._slope
        self._curve = list(self._known), [self._table[n] for n in self._known]
        if self.plain_pace is not None:  # what plain passes take stays what it is
            self.plain_pace.now = plain / self.seconds(1, self._plain_at)
        self.version += 1

    @staticmethod
    def _at(n: int, context: int, slope: tuple[float, float]) -> float:
        """What the cache adds."""
        return (slope[0] + slope[1] * n) * context

    def _learn_slope(self, measured: Mapping[int, float], context: int) -> None:
        """Least squares over what each size took more than at the length of the table, relative to
        what it takes; a single size is shared out evenly between b₀ and b₁."""
        apart = context - self._length
        there = {n: self._table[n] + self._at(n, self._length, self._slope) for n in measured}
        # A thousandth of an observation that b₀ = b₁ decides where the others leave it open.
        rows = [(0.03, -0.03, 0.0)]
        one = min(there.values())
        for n, seconds in measured.items():
            weight = one / there[n]
            rows.append((weight, weight * n, weight * (seconds - there[n]) / apart))
        grid = np.array(rows)
        fixed, each = np.linalg.lstsq(grid[:, :2], grid[:, 2], rcond=None)[0].tolist()
        if each < 0.0:
            fixed, each = float(np.dot(grid[1:, 0], grid[1:, 2]) / np.sum(grid[1:, 0] ** 2)), 0.0
        elif fixed < 0.0:
            fixed, each = 0.0, float(np.dot(grid[1:, 1], grid[1:, 2]) / np.sum(grid[1:, 1] ** 2))
        slope = max(0.0, fixed), max(0.0, each)
        for n in self._known:
            there_now = self._table[n] + self._at(n, self._length, self._slope)
            # The cache's share cannot be most of what a pass takes where it is nearly empty.
            self._table[n] = max(0.5 * there_now, there_now - self._at(n, self._length, slope))
        self._slope, self.two_lengths = slope, True

    def _interpolated(self, n: int) -> float:
        """a(n)."""
        table, known = self._table, self._known
        if n in table:
            return table[n]
        if not known:
            return 0.0
        i = bisect_left(known, n)
        if i == 0:
            return table[known[0]]
        if i == len(known):
            # Beyond the largest measured size a pass costs at least its tokens' share.
            return table[known[-1]] * n / known[-1]
        low, high = known[i - 1], known[i]
        share = (n - low) / (high - low)
        return table[low] * (1.0 - share) + table[high] * share


class VerificationCosts:
    """Seconds of a verifying pass over n tokens, n = 1 … most + 1, localspec's own work included.

    Args:
        curve: of the target.
        context: cached tokens.
        most: most tokens of a draft.
        step_overhead, row_overhead: seconds of localspec's own work, for a plain step and for each
            drafted token on top.

    Attributes:
        least: by n, the least that a pass over n or more tokens costs.
        size: by n, the number of tokens that costs so little; n itself unless a larger pass is
            cheaper, whose free slots are then filled.
        ceiling: the speed-up if drafts of a usual length cost nothing but planning them, and were
            always right.
    """

    USUAL = 8
    """Tokens of a pass; more are accepted only where text is copied."""
    PLANNING = 400e-6
    """Seconds of a step that is planned and drafted, on top of a plain one: some 150 µs of work,
    during which the native threads fall asleep, and take as long to be woken."""

    __slots__ = ("ceiling", "least", "size")

    def __init__(
        self,
        curve: CostCurve,
        context: int,
        most: int,
        *,
        step_overhead: float = 0.0,
        row_overhead: float = 0.0,
    ) -> None:
        n = most + 1
        rows = curve.row(n, context)
        if rows[1]:
            # Gains are measured by plain decoding, which plain passes know best.
            rows[1] = curve.plain(context) / curve.pace
        for i in range(1, n + 1):
            rows[i] += step_overhead + (i - 1) * row_overhead
        sizes = list(range(n + 1))
        for i in range(n - 1, 0, -1):
            if rows[i + 1] <= rows[i]:
                rows[i], sizes[i] = rows[i + 1], sizes[i + 1]
        self.least = tuple(rows)
        self.size = tuple(sizes)
        dearer = [rows[i] + self.PLANNING for i in range(2, min(n, self.USUAL) + 1)]
        self.ceiling = max((i * rows[1] / cost for i, cost in enumerate(dearer, 2)), default=1.0)

    @classmethod
    def evenly(cls, first: float, each: float, most: int) -> VerificationCosts:
        """Where every further row costs the same."""
        costs = cls.__new__(cls)
        costs.least = (0.0, *(first + n * each for n in range(most + 1)))
        costs.size = tuple(range(most + 2))
        costs.ceiling = 1.0
        return costs
