"""A certificate from elsewhere against the files, versions and machine here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from localspec.bench.machine import FileFacts, Machine, file_facts
from localspec.errors import UsageError
from localspec.gguf.names import parts_of
from localspec.llama.adapters import Adapter

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
class CertificateDifference:
    """A fact here against the certificate's; None where there is none.

    `decides`: the certificate is about something else if they differ.
    """

    what: str
    certified: str | None
    here: str | None
    decides: bool

    @property
    def same(self) -> bool:
        return self.certified == self.here


def files_of(path: Path | None) -> tuple[FileFacts, ...]:
    """Every file of a model, read as a whole; none for no model."""
    if path is None:
        return ()
    return tuple(file_facts(path.with_name(name)) for name in parts_of(path.name))


def adapters_of(adapters: Sequence[Adapter]) -> list[str]:
    """The hash of each adapter, and its scale."""
    return [f"{file_facts(one.path).sha256}:{one.scale:g}" for one in adapters]


def compare(
    found: dict[str, Any],
    machine: Machine,
    target: Path,
    draft: Path | None,
    adapters: Mapping[str, Sequence[Adapter]] = MappingProxyType({}),
) -> list[CertificateDifference]:
    """What is the same, and what is not.

    Args:
        found: the JSON values of a certificate.
        adapters: of the model and the draft model, by their names in `settings`.

    Raises:
        UsageError: the certificate lacks something.
        OSError: a file cannot be read.
    """
    try:
        then, files, settings = found["machine"], found["files"], found["settings"]
        told = [
            _decisive("model", [one["sha256"] for one in files["target"]], _hashes(target)),
            _decisive("draft model", [one["sha256"] for one in files["draft"]], _hashes(draft)),
        ]
        for what, key in (("adapters", "lora"), ("adapters of the draft model", "lora_draft")):
            one = _decisive(what, settings.get(key, []), adapters_of(adapters.get(key, ())))
            told += [one] if one.here or one.certified else []
        for name, decides in _VERSIONS.items():
            here = str(getattr(machine, name))
            what = name.replace("_", " ")
            told.append(CertificateDifference(what, str(then[name]), here, decides))
        return told
    except (KeyError, TypeError):
        raise UsageError(
            "The certificate lacks its facts. Name the certificate.json that 'localspec verify "
            "--out' wrote."
        ) from None


def _decisive(what: str, certified: list[str], here: list[str]) -> CertificateDifference:
    return CertificateDifference(what, " ".join(certified) or None, " ".join(here) or None, True)


def _hashes(path: Path | None) -> list[str]:
    return [facts.sha256 for facts in files_of(path)]
