"""How the tools print what they measured."""

from __future__ import annotations

import statistics


def report(what: str, values: list[float], unit: str) -> None:
    """Median with the middle half of the values."""
    low, middle, high = statistics.quantiles(values, n=4)
    print(f"{what:58}{middle:9.3f} {unit}  ({low:.3f} – {high:.3f})", flush=True)
