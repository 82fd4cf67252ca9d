"""What came of a check."""

from __future__ import annotations

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
