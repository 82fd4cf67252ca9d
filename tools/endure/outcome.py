"""What a trial came to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """One row of the table.

    Attributes:
        what: was tried.
        count: how often.
        unit: what was counted.
        seen: what it came to besides, in words.
        failures: what should not have come, each in words.
    """

    what: str
    count: int = 0
    unit: str = ""
    seen: str = ""
    failures: list[str] = field(default_factory=list)
