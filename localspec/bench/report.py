"""The report: all measurements as JSON and text."""

from __future__ import annotations

import io
import json
import textwrap
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from rich.cells import cell_len

from localspec.bench.arms import AUTO, KNOWLEDGE, PLAIN
from localspec.bench.machine import FileFacts, Machine
from localspec.bench.samples import Sample
from localspec.bench.summary import ALL, METHOD, MIN_PROMPTS, Cell, PairSummary, summarise
from localspec.text import gigabytes

FORMAT = 6
"""Version of the JSON, incremented when its meaning changes."""


@dataclass(kw_only=True)
class PairResults:
    """The measurements of one pair of models. `commands`: the command of each arm; `dropped`: why
    arms failed."""

    name: str
    target: FileFacts
    draft: FileFacts | None
    samples: list[Sample]
    commands: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    @cached_property
    def summary(self) -> PairSummary:
        return summarise(self.samples)


@dataclass(slots=True, kw_only=True)
class Report:
    """A whole benchmark; `date` is ISO 8601, UTC; `partial`: it was interrupted."""

    machine: Machine
    command: str
    date: str
    settings: dict[str, Any]
    pairs: list[PairResults]
    partial: bool = False

    def files(self) -> dict[str, str]:
        """The texts of its files by their names."""
        return {"report.json": self.to_json(), "report.txt": report_text(self, 100, whole=True)}

    def to_json(self) -> str:
        data: dict[str, Any] = {"format": FORMAT, "interval": METHOD} | asdict(self)
        for shown, pair in zip(data["pairs"], self.pairs, strict=True):
            shown["summary"] = asdict(pair.summary)
        return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)


def _conditions(report: Report) -> list[str]:
    machine = report.machine
    version = machine.localspec + (f" ({machine.commit[:12]})" if machine.commit else "")
    lines = [
        f"Date: {report.date}",
        f"Command: {report.command}",
        f"CPU: {machine.cpu}, {machine.cores} cores, {machine.threads} threads",
        *([f"GPU: {machine.gpu}"] if machine.gpu else []),
        f"Memory: {gigabytes(machine.memory)}",
        f"System: {machine.system}",
        f"localspec: {version}",
        f"llama-cpp-python: {machine.llama_cpp_python}, Python {machine.python}",
        f"Settings: {', '.join(f'{name} {value}' for name, value in report.settings.items())}",
    ]
    if report.partial:
        lines.append("It was interrupted; the figures cover the results so far.")
    for pair in report.pairs:
        lines += [f"{pair.name}: arm '{arm}' failed: {why}" for arm, why in pair.dropped.items()]
        for role, file in (("target", pair.target), ("draft model", pair.draft)):
            if file is not None:
                size = gigabytes(file.size)
                lines.append(f"{pair.name}: {role} {file.path}, {size}, SHA-256 {file.sha256}")
        lines += [f"{pair.name}: {arm}: {command}" for arm, command in pair.commands.items()]
    return lines


def report_text(report: Report, width: int, *, whole: bool = False) -> str:
    """The tables at that width. `whole`: with the conditions, and all arms suite by suite."""
    parts, notes = ["\n".join([*_conditions(report), ""])] if whole else [], dict[str, None]()
    for pair in report.pairs:
        if pair.samples:
            parts.append(f"{pair.name}\n")
            summary = pair.summary
            temperatures = dict.fromkeys(cell.temperature for cell in summary.cells)
            shown = [figures(summary, one, whole=whole) for one in temperatures]
            parts += [table_text(table, width) for table in shown]
            notes |= dict.fromkeys(note for table in shown for note in table.notes)
            parts += [
                f"{found.arm}: {found.equal} of {found.total} greedy answers equal plain's\n"
                for found in summary.equality
                if whole or found.equal < found.total
            ]
    return "\n".join([*parts, *(textwrap.fill(note, width) for note in notes), ""])


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first column has the names of rows; `notes`: sentences that explain it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def figures(summary: PairSummary, temperature: float, *, whole: bool = True) -> Table:
    """Each arm's figures over all suites, then suite by suite: `whole`, or only of `auto`."""
    several = len({cell.suite for cell in summary.cells}) > 2  # with ALL
    cells = [
        cell
        for cell in summary.cells
        if cell.temperature == temperature
        and (cell.suite == ALL or (several and (whole or cell.arm == AUTO)))
    ]
    notes = ["accepted: of tested draft tokens, * of drafted ones."]
    if any(cell.interval for cell in cells):
        notes.append(f"{METHOD}.")
    if any(cell.speed_up and cell.interval is None for cell in cells):
        notes.append(
            f"No interval: fewer than {MIN_PROMPTS} prompts, or no scipy "
            "(in the clone: pip install '.[bench]')."
        )
    header = ["arm", "× plain", "95%", "tok/s", "accepted", "per pass"]
    rows = [_row(cell) for cell in cells]
    if any(cell.calibration_seconds for cell in cells):
        header.append("before, s")
        for row, cell in zip(rows, cells, strict=True):
            row.append(number(cell.calibration_seconds))
        notes.append(
            "before: seconds per answer spent on timing passes. They count as part of the "
            "prompt, not of the speed."
        )
    arms = {cell.arm for cell in cells}
    notes += [f"{arm}: {known}" for arm, known in KNOWLEDGE.items() if arm in arms]
    return Table(f"Figures, {_sampling(temperature)}", header, rows, notes)


def _row(cell: Cell) -> list[str]:
    name = cell.arm if cell.suite == ALL else f"{cell.arm}: {cell.suite}"
    rate = percent(cell.acceptance)
    if cell.acceptance is None and cell.kept is not None:
        rate = f"{percent(cell.kept)}*"
    sure = cell.interval is not None and cell.arm != PLAIN
    interval = "{:.2f}–{:.2f}".format(*(cell.interval or ())) if sure else "–"
    speed = f"{cell.tokens_per_second:.{1 if cell.tokens_per_second < 100 else 0}f}"
    return [name, number(cell.speed_up), interval, speed, rate, number(cell.tokens_per_pass)]


def _sampling(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"T = {temperature:g}"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def table_text(table: Table, width: int) -> str:
    """A table as text of at most `width` columns; names of rows are folded."""
    from rich.console import Console
    from rich.table import Table as Grid

    file = io.StringIO()
    # Names are printed literally: without markup, emoji or coloured numbers.
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
    console.print(grid)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
