"""Cost curves of one model, a curve for each count of threads that its passes ran on."""

from __future__ import annotations

from typing import Any

from localspec.planning.costs import CostCurve


class ThreadCurves:
    """T(n) by thread count. What was never measured on a count begins as the curve of the nearest
    one: its shape, at a pace that live passes find.

    Attributes:
        threads: the present count; `now` is its curve. 0 until somebody says one.
        borrowed: whether that curve was never measured on this count.
    """

    def __init__(self) -> None:
        self._curves: dict[int, CostCurve] = {}
        self._borrowed: set[int] = set()
        self.threads = 0
        self.now = CostCurve()

    def __bool__(self) -> bool:
        return any(self._curves.values()) or bool(self.now)

    @property
    def borrowed(self) -> bool:
        return self.threads in self._borrowed

    def measured(self) -> None:
        """Take note that the present curve was calibrated."""
        self._borrowed.discard(self.threads)

    def use(self, threads: int, price: float | None = None) -> None:
        """Go on with the curve of another count.

        Args:
            price: what passes cost there, in those at the present count, where that is known.
        """
        if threads == self.threads:
            return
        before = self.threads
        self._curves[before] = self.now
        known = self._curves.get(threads)
        if known is None or not known:
            # A curve from before anybody spoke of threads is as good as one of this count.
            known = self._borrow(threads, before, price)
        self.threads, self.now = threads, known
        if before == 0:
            self._curves.pop(0)

    def as_dict(self) -> dict[str, Any]:
        """For the store: the measured ones by thread count."""
        curves = self._curves | {self.threads: self.now}
        return {
            str(threads): curve.as_dict()
            for threads, curve in sorted(curves.items())
            if curve and threads not in self._borrowed
        }

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
        threads, self.threads, self.now = self.threads, 0, curves.get(0, CostCurve())
        self._curves, self._borrowed = curves, set()
        self.use(threads)

    def _borrow(self, threads: int, before: int, price: float | None) -> CostCurve:
        measured = [n for n, curve in self._curves.items() if curve and n not in self._borrowed]
        if not measured:
            return CostCurve()
        nearest = min(measured, key=lambda n: abs(n - threads))
        if nearest == 0:
            return self._curves[0]
        curve = CostCurve.from_dict(self._curves[nearest].as_dict())
        if price is None or nearest != before:
            price = (nearest / threads) ** SCALING
        curve.set_pace(self._curves[nearest].pace * price)
        self._borrowed.add(threads)
        return curve


SCALING = 0.8
"""Twice the threads are guessed to make passes 2 to this power times faster."""
