"""What came of a check, and what a check allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, INCOMPLETE = "passed", "failed", "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One check: what was tried and found. `complete`: there was time for all."""

    check: str
    faults: tuple[str, ...]
    summary: str
    figures: dict[str, Any]
    complete: bool = True

    @property
    def verdict(self) -> str:
        return FAILED if self.faults else PASSED


@dataclass(frozen=True, slots=True)
class Limit:
    """How far apart two logits may be that rounding exchanged; None where nothing may differ."""

    logits: float | None

    def exceeded(self, gap: float) -> bool:
        return self.logits is None or not abs(gap) <= self.logits

    @property
    def beyond(self) -> str:
        if self.logits is None:
            return "nothing may differ with localspec's kernels"
        return f"more than rounding moves ({self.logits:.4f})"


def left_out(unasked: Sequence[str], idle: Sequence[str]) -> str:
    """Ways without time, and ways that drafted nothing."""
    found = f" There was no time for {', '.join(unasked)}." if unasked else ""
    if idle:
        found += f" Not tested, as they drafted nothing: {', '.join(idle)}."
    return found
