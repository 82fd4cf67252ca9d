"""The planner beside plain decoding and llama-server in the same run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from localspec.bench.arms import COLD, FIRST, PLANNER
from localspec.bench.speed_ups import geometric_mean
from localspec.bench.summary import PairSummary
from localspec.bench.table import Table, kind

SERVER = "llama-server "
SERVER_PLAIN = "llama-server plain"
DEFAULT = "(default)"
"""How the name of the server's default draft mode ends."""

_Speeds = Mapping[str, float]


def comparison_table(summary: PairSummary, temperature: float) -> Table:
    """Ratios of the planner's speed to others', by suite and as a geometric mean."""
    suites = summary.suites
    speeds = {arm: _speeds(summary, arm, temperature) for arm in summary.arms}
    server = {arm: found for arm, found in speeds.items() if arm.startswith(SERVER)}
    full = {arm: found for arm, found in server.items() if len(found) == len(suites)}
    others: dict[str, _Speeds] = {"plain": dict.fromkeys(suites, 1.0)}
    others |= {arm: s for arm, s in full.items() if arm == SERVER_PLAIN or arm.endswith(DEFAULT)}
    if full:
        best = max(full, key=lambda name: geometric_mean(full[name].values()))
        others[f"best configuration: {best.removeprefix(SERVER)}"] = full[best]
        each = {s: max(found[s] for found in full.values()) for s in suites}
        others["best configuration of each suite"] = each
    rows = [
        [f"{arm} ÷ {what}", *_ratios(speeds[arm], theirs, suites)]
        for arm in (PLANNER, FIRST, COLD)
        if speeds.get(arm)
        for what, theirs in others.items()
    ]
    return Table(
        f"The planner against the others, {kind(temperature)}",
        ["", *suites, "all", "lowest"],
        rows,
        ["Ratios of tokens/s; all: geometric mean over the suites."] if rows else [],
    )


def _speeds(summary: PairSummary, arm: str, temperature: float) -> dict[str, float]:
    cells = [summary.cell(arm, suite, temperature) for suite in summary.suites]
    return {cell.suite: cell.speed_up for cell in cells if cell and cell.speed_up is not None}


def _ratios(mine: _Speeds, theirs: _Speeds, suites: Iterable[str]) -> list[str]:
    ratios = {s: mine[s] / theirs[s] for s in suites if s in mine and s in theirs}
    shown = [f"{ratios[s]:.2f}" if s in ratios else "–" for s in suites]
    return [*shown, f"{geometric_mean(ratios.values()):.2f}", f"{min(ratios.values()):.2f}"]
