"""The report's files."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from localspec.bench import charts
from localspec.bench.html import html
from localspec.bench.report import Report, markdown
from localspec.errors import LocalspecError


def prepare(folder: Path) -> None:
    """Make the folder and write to it once, before an hour is spent.

    Raises LocalspecError: it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        raise _refused(folder, error) from None


def write(report: Report, folder: Path) -> list[Path]:
    """Write report.json first, then report.md, report.html and the charts.

    Raises LocalspecError: the disk is full, or the folder cannot be written to any more.
    """
    written: list[Path] = []

    def save(name: str, data: bytes) -> None:
        path = folder / name
        try:
            path.write_bytes(data)
        except OSError as error:
            raise _refused(path, error) from None
        written.append(path)

    save("report.json", report.to_json().encode())
    drawn: list[charts.Chart] = []
    if charts.available():
        for pair in report.pairs:
            prefix = f"{_slug(pair.name)}-" if len(report.pairs) > 1 else ""
            drawn += charts.draw(pair, prefix)
    save("report.md", markdown(report, [(f.caption, f"{f.name}.png") for f in drawn]).encode())
    save("report.html", html(report, [(f.caption, f.svg) for f in drawn]).encode())
    for chart in drawn:
        save(f"{chart.name}.svg", chart.svg.encode())
        save(f"{chart.name}.png", chart.png)
    return written


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "pair"


def _refused(path: Path, error: OSError) -> LocalspecError:
    cause = error.strerror or os.strerror(error.errno or 0)
    return LocalspecError(
        f"The report cannot be written to {path}: {cause}. "
        "Make room, or name another folder with --output."
    )
