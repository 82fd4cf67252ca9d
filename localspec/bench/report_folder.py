"""The report's files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

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


def write(report: Report, folder: Path) -> None:
    """Write report.json first, then report.md.

    Raises LocalspecError: the disk is full, or the folder cannot be written to any more.
    """
    _save(folder / "report.json", report.to_json())
    _save(folder / "report.md", markdown(report))


def _save(path: Path, text: str) -> None:
    try:
        path.write_bytes(text.encode())
    except OSError as error:
        raise _refused(path, error) from None


def _refused(path: Path, error: OSError) -> LocalspecError:
    cause = error.strerror or os.strerror(error.errno or 0)
    return LocalspecError(
        f"The report cannot be written to {path}: {cause}. "
        "Make room, or name another folder with --output."
    )
