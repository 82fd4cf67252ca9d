"""One table of the report."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report; the first column names the row, `notes` are sentences below it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def kind(temperature: float) -> str:
    """A temperature in words."""
    return "greedy" if temperature == 0 else f"T = {temperature:g}"
