"""The report's tables, as text for Markdown and the terminal."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from statistics import geometric_mean

from rich.cells import cell_len

from localspec.bench.arms import COLD, FIRST, KNOWLEDGE, PLAIN, PLANNER
from localspec.bench.speed_ups import LEAST_PROMPTS, METHOD
from localspec.bench.summary import ALL, Cell, PairSummary


@dataclass(frozen=True, slots=True)
class Table:
    """The first column names the row; `notes` are sentences below."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def tables(summary: PairSummary, *, whole: bool = True) -> list[Table]:
    """All tables of one pair that are not empty. `whole`: every arm suite by suite, not only the
    planner, and where answers differ."""
    found = []
    for temperature in summary.temperatures:
        found += [figures(summary, temperature, whole=whole), comparison(summary, temperature)]
    found += [_equality(summary)] if whole else []
    return [table for table in found if table.rows]


def figures(summary: PairSummary, temperature: float, *, whole: bool = True) -> Table:
    """An arm's figures over all suites, then suite by suite."""
    cells = [
        cell
        for arm in summary.arms
        for suite in (ALL, *summary.suites)
        if suite == ALL or (len(summary.suites) > 1 and (whole or arm == PLANNER))
        if (cell := summary.cell(arm, suite, temperature)) is not None
    ]
    notes = [
        "accepted: ÷ tested draft tokens, * ÷ drafted ones. draft, verify, own: shares of the time."
    ]
    if any(cell.interval for cell in cells):
        notes.append(f"{METHOD}.")
    if any(cell.speed_up and cell.interval is None for cell in cells):
        notes.append(
            f"No interval: fewer than {LEAST_PROMPTS} prompts, or no scipy "
            "(pip install '.[bench]' in the clone of localspec)."
        )
    header = ["arm", "× plain", "95 %", "tok/s", "accepted", "per pass", "draft", "verify", "own"]
    rows = [_row(cell) for cell in cells]
    if any(cell.calibration_seconds for cell in cells):
        header.append("before, s")
        for row, cell in zip(rows, cells, strict=True):
            row.append(number(cell.calibration_seconds))
        notes.append(
            "before: seconds per answer spent on measuring what passes cost. They belong to the "
            "prompt, and are in no speed."
        )
    notes += [f"{arm}: {KNOWLEDGE[arm]}" for arm in summary.arms if arm in KNOWLEDGE]
    return Table(f"Figures, {_kind(temperature)}", header, rows, notes)


def _row(cell: Cell) -> list[str]:
    name = cell.arm if cell.suite == ALL else f"{cell.arm}: {cell.suite}"
    rate = percent(cell.acceptance)
    if cell.acceptance is None and cell.kept is not None:
        rate = f"{percent(cell.kept)}*"
    sure = cell.interval is not None and cell.arm != PLAIN
    interval = "{:.2f}–{:.2f}".format(*(cell.interval or ())) if sure else "–"
    speed = f"{cell.tokens_per_second:.{1 if cell.tokens_per_second < 100 else 0}f}"
    shares = (cell.draft_share, cell.verify_share, cell.overhead_share)
    row = [name, number(cell.speed_up), interval, speed, rate, number(cell.tokens_per_pass)]
    return [*row, *map(percent, shares)]


_SERVER = "llama-server "
_SERVER_PLAIN = "llama-server plain"
_DEFAULT = "(default)"
"""How the name of the server's default draft mode ends."""


def comparison(summary: PairSummary, temperature: float) -> Table:
    """Ratios of the planner's speed to llama-server's."""
    speeds = {
        arm: {
            cell.suite: cell.speed_up
            for cell in summary.cells
            if (cell.arm, cell.temperature) == (arm, temperature)
            and cell.suite != ALL
            and cell.speed_up is not None
        }
        for arm in summary.arms
    }
    suites = summary.suites
    full = {a: s for a, s in speeds.items() if a.startswith(_SERVER) and len(s) == len(suites)}
    others = {a: s for a, s in full.items() if a == _SERVER_PLAIN or a.endswith(_DEFAULT)}
    if full:
        best = max(full, key=lambda name: geometric_mean(full[name].values()))
        others[f"best configuration: {best.removeprefix(_SERVER)}"] = full[best]
        each = {suite: max(found[suite] for found in full.values()) for suite in suites}
        others["best configuration of each suite"] = each
    rows = []
    for arm in (PLANNER, FIRST, COLD):
        for what, theirs in others.items() if speeds.get(arm) else ():
            ratios = {suite: mine / theirs[suite] for suite, mine in speeds[arm].items()}
            lowest = min(ratios, key=lambda suite: ratios[suite])
            mean = number(geometric_mean(ratios.values()))
            rows.append([f"{arm} ÷ {what}", mean, number(ratios[lowest]), lowest])
    return Table(
        f"The planner against llama-server, {_kind(temperature)}",
        ["", "all", "lowest", "suite"],
        rows,
        ["Ratios of tokens/s; all: geometric mean over the suites."],
    )


def _equality(summary: PairSummary) -> Table:
    rows = []
    for found in summary.equality:
        places = [f"{suite} {prompt} at {n}" for suite, prompt, n in found.divergences[:4]]
        more = len(found.divergences) - len(places)
        shown = ", ".join(places) + (f" and {more} more" if more else "")
        rows.append([found.arm, f"{found.equal} of {found.total}", shown])
    note = (
        "Passes over several tokens use other kernels than those over one, and a near-tie can flip."
    )
    header = ["arm", "equal", "first different token"]
    return Table("Greedy answers equal to plain decoding's", header, rows, [note])


def _kind(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"T = {temperature:g}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def table_text(table: Table, width: int) -> str:
    """A table in at most `width` columns of text; names of rows are folded."""
    from rich.console import Console
    from rich.table import Table as Grid

    file = io.StringIO()
    # Names are shown as they are: neither markup nor emoji nor numbers in colour.
    console = Console(
        file=file, width=width, color_system=None, markup=False, emoji=False, highlight=False
    )
    grid = Grid(title=table.title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    grid.add_column(table.header[0], overflow="fold")
    for name, *cells in [*zip(table.header, *table.rows, strict=True)][1:]:
        longest = max(map(cell_len, [*name.split(), *cells]))
        grid.add_column(name, justify="right", width=longest)
    for row in table.rows:
        grid.add_row(*row)
    console.print(grid, *table.notes, sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
