"""T(n) of one model by thread count."""

from __future__ import annotations

from typing import Any

from localspec.policy.cost_curve import CostCurve

SCALING = 0.8
"""Twice the threads are guessed to make passes 2 to this power times faster."""


class ThreadCurves:
    """Cost curves by thread count. A new count begins with the shape of the nearest one's curve, at
    a pace that live passes find.

    Attributes:
        threads: the present count; `now` is its curve. 0 until `use`.
        borrowed: whether that curve was never measured on this count.
    """

    def __init__(self, threads: int = 0) -> None:
        self._curves: dict[int, CostCurve] = {}
        self._lent: dict[int, CostCurve] = {}  # what live passes made of borrowed ones
        self.threads, self.now, self.borrowed = threads, CostCurve(), False

    def __bool__(self) -> bool:
        return any(self._curves.values()) or bool(self.now)

    def measured(self) -> None:
        """The present curve was calibrated."""
        self.borrowed = False

    def use(self, threads: int, price: float | None = None) -> None:
        """Go on with the curve of another count.

        Args:
            price: what passes cost there, in those at the present count, where that is known.
        """
        before = self.threads
        if threads == before:
            return
        # A curve from before anybody spoke of threads is as good as one of this count.
        if self.borrowed:
            self._lent[before] = self.now
        elif self.now:
            self._curves[before or threads] = self.now
        self.threads, self.borrowed = threads, False
        known = self._curves.get(threads) or self._lent.get(threads)
        if known is not None:
            self.now, self.borrowed = known, threads not in self._curves
            return
        self.now = CostCurve()
        if self._curves:
            nearest = min(self._curves, key=lambda n: abs(n - threads))
            self.now = CostCurve.from_dict(self._curves[nearest].as_dict())
            if price is None or nearest != before:
                price = (nearest / threads) ** SCALING
            self.now.set_pace(self._curves[nearest].pace * price)
            self.borrowed = True

    def as_dict(self) -> dict[str, Any]:
        """The measured ones by thread count."""
        now = {} if self.borrowed else {self.threads: self.now}
        curves = self._curves | now
        return {str(n): curve.as_dict() for n, curve in sorted(curves.items()) if curve}

    def restore(self, stored: Any) -> None:
        """Take over what `as_dict` gave, and stay at the present count.

        Raises:
            ValueError: not such a record.
        """
        try:
            curves = {int(threads): CostCurve.from_dict(c) for threads, c in stored.items()}
        except (AttributeError, TypeError) as error:
            raise ValueError(f"no such record: {error}") from None
        if any(threads < 0 for threads in curves):
            raise ValueError("no such number of threads")
        threads, self.threads, self.now = self.threads, 0, curves.pop(0, CostCurve())
        self._curves, self.borrowed = curves, False
        self.use(threads)
