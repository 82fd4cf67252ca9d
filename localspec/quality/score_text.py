"""What came out, in words."""

from __future__ import annotations

from typing import Any

_LISTED = 20
"""Items that differ; more are counted."""


def text(suite: str, found: dict[str, Any]) -> str:
    """The outcome of a suite, see `localspec.quality.suite_run.SuiteOutcome.as_dict`."""
    lines = [f"{suite}, {found['items']} questions"]
    plain = found["ways"]["plain"]
    for name, way in found["ways"].items():
        low, high = way["interval"]
        line = (
            f"{name:12}{way['right']:4} of {way['of']} right ({low:.0%} to {high:.0%})"
            f"{way['tokens_per_second']:9.1f} tok/s"
        )
        if name != "plain" and plain["tokens_per_second"]:
            line += f"  {way['tokens_per_second'] / plain['tokens_per_second']:.2f} x plain"
        lines.append(line if way["lossless"] else line + "  lossy")
    for name, way in found["ways"].items():
        differences = way["differences"]
        if not differences:
            continue
        lines.append(f"{name} answers {len(differences)} of {way['of']} otherwise than plain:")
        lines += [f"  {_difference(one)}" for one in differences[:_LISTED]]
        if len(differences) > _LISTED:
            lines.append(f"  and {len(differences) - _LISTED} more, which --json lists")
    if found["noise"]:
        lines.append(f"Rounding moves logits by {found['noise']:.4f} at most here.")
    lines += found["faults"]
    return "\n".join(lines) + "\n"


def _difference(one: dict[str, Any]) -> str:
    gap = "one of them ends" if one["gap"] is None else f"{one['gap']:.4f} logits apart"
    verdicts = {True: "right", False: "wrong"}
    plain, here = verdicts[one["plain_right"]], verdicts[one["right"]]
    score = f"both {plain}" if plain == here else f"{plain} became {here}"
    return f"{one['item']} from token {one['position']}, {gap}: {score}"
