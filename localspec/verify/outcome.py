"""What came of a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PASSED, FAILED, INCOMPLETE = "passed", "failed", "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One check.

    Attributes:
        check: its name.
        faults: sentences; none where it passed.
        summary: what was tried and found, in a sentence or two.
        figures: JSON values.
        complete: whether all was tried that was meant to be, else the time was over.
    """

    check: str
    faults: tuple[str, ...]
    summary: str
    figures: dict[str, Any]
    complete: bool = True

    @property
    def verdict(self) -> str:
        return FAILED if self.faults else PASSED


def left_out(unasked: Sequence[str], idle: Sequence[str]) -> str:
    """What a check says nothing of, in words that go on a summary.

    Args:
        unasked: ways of drafting that there was no time for.
        idle: ways that drafted nothing.
    """
    found = f" There was no time for {', '.join(unasked)}." if unasked else ""
    if idle:
        found += f" Not tested, as they drafted nothing: {', '.join(idle)}."
    return found
