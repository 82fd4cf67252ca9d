"""What a plain pass takes longer right behind a pass of another size.

llama.cpp keeps the graph of the last pass and builds it anew where the next one has another shape:
some 0.4 ms, 2 % of a plain pass of a model of 1.5 B on two cores (docs/measurements.md), more of a
shorter one. In plain decoding that never happens, so where nearly every plain pass stands behind a
drafted step, taking them as they are would make plain decoding look slower, and drafts better, than
it is.
"""

from __future__ import annotations

import math
from typing import Any


class SizeChange:
    """Learned from pairs: a plain pass behind one of another size, and the plain pass behind that.
    Both ran at nearly the same time, so what else the machine does cancels out.

    Attributes:
        pairs: how many were seen.
    """

    RATE, PRIOR = 0.02, 6
    """Weight of a pair when there were many, and pairs that "no longer" counts for at first: where
    passes are noisy, a few say little, and plain decoding must not look much faster than it is."""
    MOST = 0.1
    """As a logarithm: a pair that is further apart than this tells of a hiccup."""
    ENOUGH = 2
    """So many pairs are asked for where they do not come by themselves."""

    __slots__ = ("_first", "_longer", "pairs")

    def __init__(self) -> None:
        self.pairs = 0
        self._longer = 0.0  # as a logarithm
        self._first: float | None = None  # the latest plain pass, where it was the first of a pair

    @property
    def factor(self) -> float:
        """Of a plain pass behind one of another size. Never below 1, which would make plain
        decoding look slower than any pass was."""
        return math.exp(max(0.0, self._longer))

    @property
    def open(self) -> bool:
        """Whether another plain pass is needed, to make a pair of the latest one."""
        return self._first is not None and self.pairs < self.ENOUGH

    def observe(self, relative: float, *, alike: bool) -> None:
        """Learn from a plain pass.

        Args:
            relative: seconds that it took ÷ those of the curve.
            alike: whether the pass before it was a plain one.
        """
        first, self._first = self._first, None if alike else relative
        if first is None or not alike:
            return
        self.pairs += 1
        off = max(-self.MOST, min(self.MOST, math.log(first / relative)))
        self._longer += max(self.RATE, 1.0 / (self.pairs + self.PRIOR)) * (off - self._longer)

    def interrupt(self) -> None:
        """A pass of another size came: the latest plain one has no second to it."""
        self._first = None

    def as_dict(self) -> dict[str, Any]:
        """For the store."""
        return {"longer": self._longer, "pairs": self.pairs}

    @classmethod
    def from_dict(cls, stored: Any) -> SizeChange:
        """The opposite of `as_dict`.

        Raises:
            ValueError: not such a record.
        """
        change = cls()
        try:
            change._longer, change.pairs = float(stored["longer"]), int(stored["pairs"])
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"no such record: {error}") from None
        if not (abs(change._longer) <= cls.MOST and change.pairs >= 0):
            raise ValueError("no such factor")
        return change
