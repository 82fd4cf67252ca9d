"""A table of the report."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the row; `notes` are sentences below."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def kind(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"T = {temperature:g}"
