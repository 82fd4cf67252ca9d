"""What was verified, on which files and machine, with which result."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec.bench.machine import FileFacts, Machine
from localspec.errors import LocalspecError, UsageError
from localspec.files import read_file, write_atomically
from localspec.identity import fingerprint
from localspec.verify.outcome import FAILED, INCOMPLETE, PASSED, Outcome

FORMAT = "localspec certificate 1"
NAME = "certificate"


@dataclass(slots=True, kw_only=True)
class Certificate:
    """What was verified.

    Attributes:
        target, draft: their files, several where a model is split.
        command: as it would be typed again.
        effort: name of an `Effort`; `settings` has its counts.
        checks: those that were done, in order; `missing` names the others.
    """

    machine: Machine
    target: tuple[FileFacts, ...]
    draft: tuple[FileFacts, ...]
    command: str
    date: str
    effort: str
    settings: dict[str, Any]
    seconds: float = 0.0
    checks: list[Outcome] = field(default_factory=list)
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Failed where any check failed; incomplete where one was not done."""
        if any(check.faults for check in self.checks):
            return FAILED
        return INCOMPLETE if self.missing else PASSED

    def as_dict(self) -> dict[str, Any]:
        """JSON values; the last one is a checksum of the others."""
        facts: dict[str, Any] = _finite(
            {
                "format": FORMAT,
                "verdict": self.verdict,
                "date": self.date,
                "command": self.command,
                "machine": asdict(self.machine),
                "files": {
                    "target": [asdict(facts) for facts in self.target],
                    "draft": [asdict(facts) for facts in self.draft],
                },
                "effort": self.effort,
                "settings": self.settings,
                "seconds": round(self.seconds, 1),
                "checks": [asdict(check) | {"verdict": check.verdict} for check in self.checks],
                "missing": list(self.missing),
            }
        )
        return {**facts, "sha256": fingerprint(facts)}


def _finite(value: Any) -> Any:
    """JSON has no infinities and NaN."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(certificate: Certificate, folder: Path) -> None:
    """Write certificate.json and certificate.md, each as a whole.

    Raises LocalspecError: the disk is full, or the folder cannot be written to.
    """
    from localspec.verify.certificate_text import markdown

    found = certificate.as_dict()
    try:
        for ending, text in (
            ("json", json.dumps(found, ensure_ascii=False, indent=2) + "\n"),
            ("md", markdown(found)),
        ):
            write_atomically(folder / f"{NAME}.{ending}", text)
    except OSError as error:
        raise LocalspecError(
            f"The certificate cannot be written into {folder}: {error.strerror or error}. Make "
            "room, or name another folder with --out."
        ) from None


def read(path: Path) -> dict[str, Any]:
    """A certificate's JSON values.

    Raises UsageError: no such file, or no certificate, or one that was changed.
    """
    try:
        found = json.loads(read_file(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}. Name the certificate.json that "
            "'localspec verify --out' wrote."
        ) from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(
            f"{path} is not a certificate of this version. Name the certificate.json that "
            "'localspec verify --out' wrote."
        )
    said = found.pop("sha256", None)
    if fingerprint(found) != said:
        raise UsageError(
            f"{path} was changed after it was written: its checksum is another one. "
            "Ask for the file as 'localspec verify --out' wrote it."
        )
    return found
