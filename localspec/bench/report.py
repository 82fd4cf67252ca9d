"""The report: all measurements as JSON, Markdown and text."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from statistics import geometric_mean
from typing import Any

from rich.cells import cell_len

from localspec.bench.arms import AUTO, KNOWLEDGE, PLAIN
from localspec.bench.machine import FileFacts, Machine
from localspec.bench.samples import Sample
from localspec.bench.speed_ups import METHOD, MIN_PROMPTS
from localspec.bench.summary import ALL, Cell, PairSummary, summarise
from localspec.text import gigabytes

FORMAT = 5
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
        return {"report.json": self.to_json(), "report.md": markdown(self)}

    def to_json(self) -> str:
        data: dict[str, Any] = {"format": FORMAT, "interval": METHOD} | asdict(self)
        for shown, pair in zip(data["pairs"], self.pairs, strict=True):
            shown["summary"] = asdict(pair.summary)
        return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)


def _facts(report: Report) -> list[tuple[str, str]]:
    machine = report.machine
    version = machine.localspec + (f" ({machine.commit[:12]})" if machine.commit else "")
    return [
        ("Date", report.date),
        ("Command", report.command),
        ("CPU", f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads"),
        *([("GPU", machine.gpu)] if machine.gpu else []),
        ("Memory", gigabytes(machine.memory)),
        ("System", machine.system),
        ("localspec", version),
        ("llama-cpp-python", f"{machine.llama_cpp_python}, Python {machine.python}"),
        ("Settings", ", ".join(f"{name} {value}" for name, value in report.settings.items())),
    ]


def _file_lines(pair: PairResults) -> list[str]:
    return [
        f"{role}: {file.path}, {gigabytes(file.size)}, SHA-256 {file.sha256}"
        for role, file in (("Target", pair.target), ("Draft model", pair.draft))
        if file is not None
    ]


def _warnings(report: Report) -> list[str]:
    partial = "It was interrupted; the figures cover the results so far."
    found = [partial] if report.partial else []
    for pair in report.pairs:
        found += [f"{pair.name}: arm '{arm}' failed: {why}" for arm, why in pair.dropped.items()]
    return found


def markdown(report: Report) -> str:
    shown: list[str] = []
    parts = [
        "# localspec bench",
        _bullets(f"{name}: {_escape(text)}" for name, text in _facts(report)),
    ]
    if found := _warnings(report):
        parts.append(_bullets(f"**{_escape(text)}**" for text in found))
    for pair in report.pairs:
        parts += [f"## {_escape(pair.name)}", _bullets(_escape(line) for line in _file_lines(pair))]
        for table in tables(pair.summary, shown):
            parts += [f"### {_escape(table.title)}", _markdown_table(table), *table.notes]
        if pair.commands:
            lines = "\n".join(f"# {arm}\n{command}" for arm, command in pair.commands.items())
            parts += ["### Commands", f"```sh\n{lines}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def report_text(report: Report, width: int) -> str:
    parts, shown = [], list[str]()
    for pair in report.pairs:
        if pair.samples:
            parts.append(f"{pair.name}\n")
            parts += [table_text(each, width) for each in tables(pair.summary, shown, whole=False)]
            parts += [
                f"{found.arm}: {found.equal} of {found.total} greedy answers equal plain's\n"
                for found in pair.summary.equality
                if found.equal < found.total
            ]
    return "\n".join(parts)


def _markdown_table(table: Table) -> str:
    lines = [_table_line(table.header), _table_line(["---", *("---:" for _ in table.header[1:])])]
    lines += [_table_line(row) for row in table.rows]
    return "\n".join(lines)


def _table_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"


def _escape(text: str) -> str:
    """Text escaped for Markdown, also in tables."""
    for sign in "\\|`*_<[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first column has the names of rows; `notes`: sentences below it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def tables(summary: PairSummary, shown: list[str], *, whole: bool = True) -> list[Table]:
    """All non-empty tables of one pair. `whole`: all arms suite by suite, not only `auto`, and
    the positions where answers differ. Leaves out the notes in `shown`, and adds its own."""
    found = []
    for temperature in summary.temperatures:
        found += [figures(summary, temperature, whole=whole), comparison(summary, temperature)]
    found = [table for table in [*found, *([_equality(summary)] if whole else [])] if table.rows]
    for table in found:
        table.notes[:] = [note for note in table.notes if note not in shown]
        shown += table.notes
    return found


def figures(summary: PairSummary, temperature: float, *, whole: bool = True) -> Table:
    """An arm's figures over all suites, then suite by suite."""
    cells = [
        cell
        for arm in summary.arms
        for suite in (ALL, *summary.suites)
        if suite == ALL or (len(summary.suites) > 1 and (whole or arm == AUTO))
        if (cell := summary.cell(arm, suite, temperature)) is not None
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
    notes += [f"{arm}: {KNOWLEDGE[arm]}" for arm in summary.arms if arm in KNOWLEDGE]
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


def comparison(summary: PairSummary, temperature: float) -> Table:
    """Speed of `auto` ÷ that of each arm; `figures` has the ratio to plain decoding."""
    rows = []
    for arm in (arm for arm in summary.arms if arm not in (AUTO, PLAIN)):
        ratios = {}
        for suite in summary.suites:
            mine, other = (summary.cell(one, suite, temperature) for one in (AUTO, arm))
            if mine and other and mine.speed_up and other.speed_up:
                ratios[suite] = mine.speed_up / other.speed_up
        if ratios:
            lowest = min(ratios, key=ratios.__getitem__)
            mean = number(geometric_mean(ratios.values()))
            rows.append([arm, mean, number(ratios[lowest]), lowest])
    note = "Ratios of tokens/s; all: geometric mean over the suites."
    return Table(
        f"auto ÷ other arms, {_sampling(temperature)}",
        ["arm", "all", "lowest", "suite"],
        rows,
        [note],
    )


def _equality(summary: PairSummary) -> Table:
    rows = []
    for found in summary.equality:
        places = [f"{suite} {prompt} at {n}" for suite, prompt, n in found.divergences[:4]]
        more = len(found.divergences) - len(places)
        shown = ", ".join(places) + (f" and {more} more" if more else "")
        rows.append([found.arm, f"{found.equal} of {found.total}", shown])
    why = "Passes over several tokens round differently than passes over one: near-ties can flip."
    header = ["arm", "equal", "first different token"]
    return Table("Greedy answers equal to plain decoding's", header, rows, [why])


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
    console.print(grid, *table.notes, sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
