"""How the planner stands against everything else in the run: plain decoding, peers, the bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from localspec.bench.arms import COLD, FIRST, PLANNER
from localspec.bench.bound import Bound
from localspec.bench.speed_ups import geometric_mean
from localspec.bench.summary import PairSummary
from localspec.bench.table import Table, kind

SERVER = "llama-server "
SERVER_PLAIN = "llama-server plain"
DEFAULT = "(default)"
"""How the name of the server's default draft mode ends."""

_Speeds = Mapping[str, float]
"""Speed-up over plain decoding by suite."""


def comparison_table(
    summary: PairSummary, temperature: float, bounds: Sequence[Bound] = ()
) -> Table:
    """The planner's speed ÷ another's, suite by suite and as a geometric mean."""
    suites = summary.suites
    speeds = {arm: _speeds(summary, arm, temperature) for arm in summary.arms}
    peers = {arm: found for arm, found in speeds.items() if arm.startswith(SERVER)}
    full = {arm: found for arm, found in peers.items() if len(found) == len(suites)}
    rows = []
    for arm in (PLANNER, FIRST, COLD):
        mine = speeds.get(arm, {})
        if not mine:
            continue
        against: list[tuple[str, _Speeds]] = [("plain", dict.fromkeys(mine, 1.0))]
        if SERVER_PLAIN in full:
            against.append((SERVER_PLAIN, full[SERVER_PLAIN]))
        default = next((name for name in full if name.endswith(DEFAULT)), None)
        if default is not None:
            against.append((default, full[default]))
        if full:
            best = max(full, key=lambda name: geometric_mean(full[name].values()))
            against.append((f"best configuration: {best.removeprefix(SERVER)}", full[best]))
            each = {s: max(found[s] for found in full.values()) for s in suites}
            against.append(("best configuration of each suite", each))
        if temperature == 0 and bounds:
            against.append(("bound in hindsight", {b.suite: b.speed_up for b in bounds}))
        for what, theirs in against:
            rows.append([f"{arm} ÷ {what}", *_ratios(mine, theirs, suites)])
    return Table(
        f"The planner against the others, {kind(temperature)}",
        ["", *suites, "all", "lowest"],
        rows,
        ["Ratios of tokens/s; all: geometric mean over the suites."] if rows else [],
    )


def _speeds(summary: PairSummary, arm: str, temperature: float) -> dict[str, float]:
    found = {}
    for suite in summary.suites:
        cell = summary.cell(arm, suite, temperature)
        if cell is not None and cell.speed_up is not None:
            found[suite] = cell.speed_up
    return found


def _ratios(mine: _Speeds, theirs: _Speeds, suites: Iterable[str]) -> list[str]:
    ratios = {s: mine[s] / theirs[s] for s in suites if s in mine and s in theirs}
    shown = [f"{ratios[s]:.2f}" if s in ratios else "–" for s in suites]
    return [*shown, f"{geometric_mean(ratios.values()):.2f}", f"{min(ratios.values()):.2f}"]
