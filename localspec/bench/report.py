"""The report: all that was measured as one record, as JSON and as Markdown."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from localspec.bench.machine import FileFacts, Machine
from localspec.bench.report_tables import Table, table_text, tables
from localspec.bench.samples import Sample
from localspec.bench.speed_ups import METHOD
from localspec.bench.summary import PairSummary, summarise
from localspec.errors import LocalspecError

FORMAT = 4
"""Of the JSON; counts up when its meaning changes."""


@dataclass(kw_only=True)
class PairResults:
    """What was measured on one pair of models. `commands`: what to type for each arm; `dropped`:
    why arms failed."""

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
    notices: list[str] = field(default_factory=list)
    partial: bool = False

    def to_json(self) -> str:
        data: dict[str, Any] = {"format": FORMAT, "interval": METHOD} | asdict(self)
        for shown, pair in zip(data["pairs"], self.pairs, strict=True):
            shown["summary"] = asdict(pair.summary)
        return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)


def _facts(report: Report) -> list[tuple[str, str]]:
    machine = report.machine
    version = machine.localspec + (f" ({machine.commit[:12]})" if machine.commit else "")
    found = [
        ("Date", report.date),
        ("Command", report.command),
        ("CPU", f"{machine.cpu}, {machine.cores} cores, {machine.threads} threads"),
        ("Memory", f"{machine.memory / 2**30:.0f} GiB"),
        ("System", machine.system),
        ("localspec", version),
        ("llama-cpp-python", f"{machine.llama_cpp_python}, Python {machine.python}"),
        ("Settings", ", ".join(f"{name} {value}" for name, value in report.settings.items())),
    ]
    if machine.gpu:
        found.insert(3, ("GPU", machine.gpu))
    return found


def _file_lines(pair: PairResults) -> list[str]:
    lines = []
    for role, file in (("Target", pair.target), ("Draft model", pair.draft)):
        if file is not None:
            size = f"{file.size / 1e6:,.1f} MB"
            lines.append(f"{role}: {file.path}, {size}, SHA-256 {file.sha256}")
    return lines


def _warnings(report: Report) -> list[str]:
    found = list(report.notices)
    if report.partial:
        found.append("It was interrupted; the figures cover the results so far.")
    for pair in report.pairs:
        found += [f"{pair.name}: arm '{arm}' failed: {why}" for arm, why in pair.dropped.items()]
    return found


def markdown(report: Report) -> str:
    parts = [
        "# localspec bench",
        _bullets(f"{name}: {_plain(text)}" for name, text in _facts(report)),
    ]
    if found := _warnings(report):
        parts.append(_bullets(f"**{_plain(text)}**" for text in found))
    for pair in report.pairs:
        parts += [f"## {_plain(pair.name)}", _bullets(_plain(line) for line in _file_lines(pair))]
        for table in tables(pair.summary):
            parts += [f"### {_plain(table.title)}", _markdown_table(table), *table.notes]
        if pair.commands:
            lines = "\n".join(f"# {arm}\n{command}" for arm, command in pair.commands.items())
            parts += ["### Commands", f"```sh\n{lines}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def report_text(report: Report, width: int) -> str:
    parts = []
    for pair in report.pairs:
        if pair.samples:
            parts.append(f"{pair.name}\n")
            parts += [table_text(table, width) for table in tables(pair.summary, whole=False)]
            parts += [
                f"{found.arm}: {found.equal} of {found.total} greedy answers equal plain's\n"
                for found in pair.summary.equality
                if found.equal < found.total
            ]
    return "\n".join(parts)


def _markdown_table(table: Table) -> str:
    lines = [_line(table.header), _line(["---", *("---:" for _ in table.header[1:])])]
    lines += [_line(row) for row in table.rows]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell) for cell in cells)} |"


def _plain(text: str) -> str:
    """Escaped for Markdown, in tables too."""
    for sign in "\\|`*_<[":
        text = text.replace(sign, "\\" + sign)
    return " ".join(text.split())


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def prepare(folder: Path, option: str = "--output") -> None:
    """Make the folder and write to it once, before an hour is spent. Raises LocalspecError: it
    cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise _refused(folder, error, option) from None


def write(report: Report, folder: Path) -> None:
    """Write report.json first, then report.md. Raises LocalspecError: the disk is full, or the
    folder cannot be written to any more."""
    path = folder
    try:
        for name, form in (("report.json", Report.to_json), ("report.md", markdown)):
            path = folder / name
            path.write_bytes(form(report).encode())
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError, option: str = "--output") -> LocalspecError:
    cause = error.strerror or os.strerror(error.errno or 0)
    return LocalspecError(
        f"The report cannot be written to {path}: {cause}. "
        f"Make room, or name another folder with {option}."
    )
