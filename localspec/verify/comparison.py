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
        then = found["machine"]
        return [
            *(
                CertificateDifference(
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
                one
                for key in ("lora", "lora_draft")
                if not (one := _adapters(key, found, adapters.get(key, ()))).same or one.here
            ),
            *(
                CertificateDifference(
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


def _adapters(key: str, found: dict[str, Any], here: Sequence[Adapter]) -> CertificateDifference:
    what = "adapters" if key == "lora" else "adapters of the draft model"
    certified = _joined(found["settings"].get(key, []))
    return CertificateDifference(what, certified, _joined(adapters_of(here)), True)


def _joined(hashes: list[str]) -> str | None:
    return " ".join(hashes) or None
