"""A certificate from elsewhere against the files, versions and machine here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.bench.machine import FileFacts, Machine, file_facts
from localspec.errors import UsageError
from localspec.gguf.names import parts_of

_VERSIONS = {
    "localspec": True,
    "llama_cpp_python": True,
    "commit": False,
    "cpu": False,
    "system": False,
    "python": False,
}
"""Facts about the machine, and whether a certificate is about something else if they differ."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something here against what a certificate says.

    Attributes:
        what: in words.
        certified, here: None where there is none.
        decides: whether the certificate says nothing about what is here if they differ; else it is
            worth knowing.
    """

    what: str
    certified: str | None
    here: str | None
    decides: bool

    @property
    def same(self) -> bool:
        return self.certified == self.here


def files_of(path: Path | None) -> tuple[FileFacts, ...]:
    """Every file of a model, read as a whole; none for no model.

    Raises:
        OSError: one cannot be read.
    """
    if path is None:
        return ()
    return tuple(file_facts(path.with_name(name)) for name in parts_of(path.name))


def compare(
    found: dict[str, Any], machine: Machine, target: Path, draft: Path | None
) -> list[Difference]:
    """What is the same, and what is not.

    Args:
        found: the JSON values of a certificate.

    Raises:
        UsageError: it lacks what a certificate has.
        OSError: a file cannot be read.
    """
    try:
        then = found["machine"]
        return [
            *(
                Difference(
                    name,
                    _joined([facts["sha256"] for facts in found["files"][key]]),
                    _joined([facts.sha256 for facts in files_of(path)]),
                    True,
                )
                for name, key, path in (
                    ("model", "target", target),
                    ("draft model", "draft", draft),
                )
            ),
            *(
                Difference(
                    name.replace("_", " "), str(then[name]), str(getattr(machine, name)), decides
                )
                for name, decides in _VERSIONS.items()
            ),
        ]
    except (KeyError, TypeError):
        raise UsageError(
            "The certificate lacks its facts. Name the certificate.json that 'localspec verify "
            "--out' wrote."
        ) from None


def _joined(hashes: list[str]) -> str | None:
    return " ".join(hashes) or None
