"""What a pass costs: T(n), measured on this machine and refined while it is used; and what
verifying so many tokens costs at one place of a text.

T(n) is neither linear nor even monotone: kernels work in tiles, so a pass over 4 tokens can cost
less than one over 3. It grows with the cached context as well, so a curve keeps one table for
each stretch of CONTEXT_STEP tokens of context.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

SIZES = (1, 4, 2, 3, 8, 5, 6, 16, 7, 12, 32, 9, 10, 11, 13, 14, 20, 24, 28, 64)
"""Sizes of a pass worth measuring, the most telling ones first."""
CONTEXT_STEP = 512


class CostCurve:
    """Seconds of one pass over n tokens behind c cached ones.

    Two things move a measured time: what this pass costs on this machine (the table), and how
    fast the machine is just now (the pace, one factor for all sizes). A live step moves the pace
    quickly and the table slowly, and no single step moves either far. So a second in which another
    process takes a core shifts the pace, which cancels out of every decision, and leaves the table
    as it was; a lasting change of one size gets through.
    """

    PACE_RATE, PACE_CLIP = 0.1, 0.7
    TABLE_RATE, TABLE_CLIP = 0.03, 0.25
    FIRST_RATE = 0.3
    """Rate of the first live pass of a size; a calibration has seen it once or twice only."""
    REFRESH = 32
    """Live passes between two refreshes of what `seconds` answers; a pass moves it by little."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, float]] = {}
        self._known: dict[int, list[int]] = {}
        self.pace = 1.0
        """How much slower than the tables the machine is at present."""
        self.version = 0
        """Counts the refreshes; what was worked out from an older one is out of date."""
        self._answers: dict[tuple[int, int], float] = {}
        self._passes = 0
        self._seen: dict[tuple[int, int], int] = {}

    def __bool__(self) -> bool:
        return bool(self._tables)

    def forget(self) -> None:
        """Drop everything that was measured."""
        self._tables.clear()
        self._known.clear()
        self._seen.clear()
        self.pace = 1.0
        self._refresh()

    def learn(self, measured: Mapping[int, float], context: int) -> None:
        """Take over calibrated seconds by pass size, at so many tokens of context."""
        stretch = context // CONTEXT_STEP
        table = self._tables.setdefault(stretch, {})
        table.update(measured)
        self._known[stretch] = sorted(table)
        self._refresh()

    def seconds(self, n: int, context: int) -> float:
        """T(n) at this context length, at the table's pace; 0 where nothing is known."""
        key = (n, context // CONTEXT_STEP)
        found = self._answers.get(key)
        if found is None:
            found = self._answers[key] = self._interpolated(*key)
        return found

    def row(self, most: int, context: int) -> list[float]:
        """T(0) = 0, T(1) … T(most): for a planner that looks many of them up."""
        stretch = context // CONTEXT_STEP
        if stretch not in self._tables or most > self._known[stretch][-1]:
            return [0.0, *(self.seconds(n, context) for n in range(1, most + 1))]
        known = self._known[stretch]
        table = self._tables[stretch]
        row = np.interp(range(1, most + 1), known, [table[n] for n in known])
        return [0.0, *row.tolist()]

    def observe(self, n: int, context: int, seconds: float) -> None:
        """Learn from a live pass."""
        stretch = context // CONTEXT_STEP
        expected = self._interpolated(n, stretch)
        if expected <= 0.0 or seconds <= 0.0:
            if seconds > 0.0:
                self.learn({n: seconds}, context)
            return
        off = math.log(seconds / (expected * self.pace))
        self.pace *= math.exp(self.PACE_RATE * max(-self.PACE_CLIP, min(self.PACE_CLIP, off)))
        if stretch not in self._tables:
            # The first pass this far into a context: what is known of shorter ones, until then.
            self.learn(
                {size: self.seconds(size, context) for size in self._nearest(stretch)}, context
            )
        table = self._tables[stretch]
        seen = self._seen.get((n, stretch), 0)
        self._seen[n, stretch] = seen + 1
        rate = max(self.TABLE_RATE, self.FIRST_RATE / (1 + seen))
        moved = expected * math.exp(rate * max(-self.TABLE_CLIP, min(self.TABLE_CLIP, off)))
        if n not in table:
            self._known[stretch].insert(bisect_left(self._known[stretch], n), n)
        table[n] = moved
        self._passes += 1
        if self._passes % self.REFRESH == 0:
            self._refresh()

    def sizes(self, most: int, context: int) -> list[int]:
        """Sizes worth choosing: every larger pass costs more.

        What lies between is never better: where 4 cost less than 3, the slot is filled.
        """
        worth: list[int] = []
        least = math.inf
        for n in range(most, 0, -1):
            cost = self.seconds(n, context)
            if cost < least:
                least = cost
                worth.append(n)
        worth.reverse()
        return worth

    def as_dict(self) -> dict[str, dict[str, float]]:
        """For the store: seconds by size, by stretch of context."""
        return {
            str(stretch): {str(n): seconds for n, seconds in sorted(table.items())}
            for stretch, table in sorted(self._tables.items())
        }

    @classmethod
    def from_dict(cls, stored: Any) -> CostCurve:
        """The opposite of `as_dict`.

        Raises:
            ValueError: not such a record.
        """
        curve = cls()
        try:
            for stretch, table in stored.items():
                measured = {int(n): float(seconds) for n, seconds in table.items()}
                if not all(n > 0 and 0.0 < s < math.inf for n, s in measured.items()):
                    raise ValueError("a pass of no tokens, or one that takes no time")
                if int(stretch) < 0 or not measured:
                    raise ValueError("no such stretch of context")
                curve.learn(measured, int(stretch) * CONTEXT_STEP)
        except (AttributeError, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None
        return curve

    def _refresh(self) -> None:
        self._answers.clear()
        self.version += 1

    def _nearest(self, stretch: int) -> Iterable[int]:
        """Sizes known at the nearest stretch of context."""
        nearest = min(self._tables, key=lambda known: (abs(known - stretch), known))
        return list(self._tables[nearest])

    def _interpolated(self, n: int, stretch: int) -> float:
        if not self._tables:
            return 0.0
        if stretch not in self._tables:
            return self._extrapolated(n, stretch)
        table, known = self._tables[stretch], self._known[stretch]
        if n in table:
            return table[n]
        i = bisect_left(known, n)
        if i == 0:
            return table[known[0]]
        if i == len(known):
            # Beyond the largest measured size a pass costs at least its tokens' share.
            return table[known[-1]] * n / known[-1]
        low, high = known[i - 1], known[i]
        share = (n - low) / (high - low)
        return table[low] * (1.0 - share) + table[high] * share

    def _extrapolated(self, n: int, stretch: int) -> float:
        """On the line through two known stretches, else as at the nearest."""
        known = sorted(self._tables)
        if stretch < known[0] or len(known) == 1:
            return self._interpolated(n, known[0])
        low, high = (known[-2], known[-1])
        for candidate in known:
            if candidate > stretch:
                low, high = known[known.index(candidate) - 1], candidate
                break
        a, b = self._interpolated(n, low), self._interpolated(n, high)
        return max(a * 0.5, a + (b - a) * (stretch - low) / (high - low))


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
