"""The report's tables, as text for Markdown and the terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from localspec.bench.arms import COLD, FIRST, KNOWLEDGE, PLAIN, PLANNER
from localspec.bench.speed_ups import LEAST_PROMPTS, METHOD, NO_SCIPY, geometric_mean
from localspec.bench.summary import ALL, Cell, PairSummary, Table, kind

if TYPE_CHECKING:
    from rich.console import JustifyMethod


def tables(summary: PairSummary, *, equality: bool = True) -> list[Table]:
    """All tables of one pair that are not empty."""
    makers = (speed_table, comparison_table, detail_table)
    found = [make(summary, temperature) for temperature in summary.temperatures for make in makers]
    found += [_equality_table(summary)] if equality else []
    return [table for table in found if table.rows]


def speed_table(summary: PairSummary, temperature: float) -> Table:
    """Suites as columns, arms as rows: × plain decoding, or tokens/s without one."""
    cells = [cell for cell in summary.cells if cell.temperature == temperature]
    suites = [s for s in summary.suites if any(cell.suite == s for cell in cells)]
    compared = any(cell.speed_up is not None for cell in cells)
    rows = []
    for arm in summary.arms:
        found = [summary.cell(arm, suite, temperature) for suite in (*suites, ALL)]
        if compared:
            rows.append([arm, *(_times(cell) for cell in found)])
        else:
            rows.append([arm, *("–" if c is None else speed(c.tokens_per_second) for c in found)])
    rows = [row for row in rows if any(cell != "–" for cell in row[1:])]
    notes = _interval_notes(summary, temperature) if compared else []
    unit = f"× {PLAIN}" if compared else "tokens/s"
    return Table(f"{unit}, {kind(temperature)}", ["arm", *suites, "all"], rows, notes)


def detail_table(summary: PairSummary, temperature: float) -> Table:
    """Arms as rows, their figures over all suites as columns."""
    found = [summary.cell(arm, ALL, temperature) for arm in summary.arms]
    cells = [cell for cell in found if cell is not None]
    rows = []
    for cell in cells:
        rate = percent(cell.acceptance)
        if cell.acceptance is None and cell.kept is not None:
            rate = f"{percent(cell.kept)} of drafted"
        shares = (cell.draft_share, cell.verify_share, cell.overhead_share)
        row = [cell.arm, speed(cell.tokens_per_second), rate, number(cell.tokens_per_pass)]
        rows.append([*row, *map(percent, shares)])
    header = ["arm", "tok/s", "accepted", "tokens/pass", "draft", "verify", "own"]
    notes = ["accepted ÷ tested draft tokens; draft, verify, own: shares of the time."]
    if any(cell.calibration_seconds for cell in cells):
        header.append("before, s")
        for row, cell in zip(rows, cells, strict=True):
            row.append(number(cell.calibration_seconds))
        notes.append(
            "before: seconds per answer spent on measuring what passes cost. They belong to the "
            "prompt, and are in no speed."
        )
    notes += [f"{arm}: {KNOWLEDGE[arm]}" for arm, *_ in rows if arm in KNOWLEDGE]
    return Table(f"Figures over all suites, {kind(temperature)}", header, rows, notes)


def _equality_table(summary: PairSummary) -> Table:
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


def _times(cell: Cell | None) -> str:
    if cell is None or cell.interval is None or cell.arm == PLAIN:
        return number(None if cell is None else cell.speed_up)
    low, high = cell.interval
    return f"{number(cell.speed_up)} ({low:.2f}–{high:.2f})"


def _interval_notes(summary: PairSummary, temperature: float) -> list[str]:
    cells = [
        cell
        for cell in summary.cells
        if cell.temperature == temperature and cell.arm != PLAIN and cell.speed_up is not None
    ]
    notes = []
    if any(cell.interval is not None for cell in cells):
        notes.append(f"(low–high): {METHOD}.")
    lacking = [s for s in (*summary.suites, ALL) if _lacks(cells, s)]
    if (
        any(cell.interval is None and cell.compared >= LEAST_PROMPTS for cell in cells)
        and not notes
    ):
        notes.append(NO_SCIPY)
    elif lacking:
        names = ", ".join(suite.strip("()") for suite in lacking)
        notes.append(f"No interval, fewer than {LEAST_PROMPTS} prompts: {names}.")
    return notes


def _lacks(cells: Sequence[Cell], suite: str) -> bool:
    return any(cell.suite == suite and cell.interval is None for cell in cells)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def speed(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


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


_GAP = 1


def table_text(table: Table, width: int) -> str:
    """A table in at most `width` columns of text.

    One that is wider comes in blocks of columns, each with the first column; long words are folded.
    """
    from rich.console import Console
    from rich.table import Table as Grid

    file = io.StringIO()
    # Names are shown as they are: neither markup nor emoji nor numbers in colour.
    console = Console(
        file=file, width=width, color_system=None, markup=False, emoji=False, highlight=False
    )
    widths = _widths(table, width)
    blocks = _blocks(widths, width)
    for number, block in enumerate(blocks, 1):
        title = f"{table.title} ({number} of {len(blocks)})" if len(blocks) > 1 else table.title
        grid = Grid(title=title, title_justify="left", box=None, padding=(0, _GAP, 0, 0))
        for column in block:
            justify: JustifyMethod = "right" if column else "left"
            name = table.header[column]
            grid.add_column(name, justify=justify, overflow="fold", width=widths[column])
        for row in table.rows:
            grid.add_row(*(row[column] for column in block))
        console.print(*([""] if number > 1 else []), grid, sep="\n")
    console.print(*table.notes, sep="\n", end="\n" if table.notes else "")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _widths(table: Table, width: int) -> list[int]:
    """Of each column: names of rows wrap beyond a third of the width, titles between words."""
    first, *rest = zip(table.header, *table.rows, strict=True)
    longest = max((cell_len(word) for name in first for word in name.split()), default=0)
    names = min(max(map(cell_len, first)), max(width // 3, min(longest, width // 2)))
    return [
        names,
        *(max(map(cell_len, ["", *title.split(), *cells])) for title, *cells in rest),
    ]


def _blocks(widths: list[int], width: int) -> list[list[int]]:
    """Columns that fit beside the first."""
    blocks, used = [[0]], widths[0] + _GAP
    for column, own in enumerate(widths[1:], 1):
        if len(blocks[-1]) > 1 and used + own + _GAP > width:
            blocks.append([0])
            used = widths[0] + _GAP
        blocks[-1].append(column)
        used += own + _GAP
    return blocks
