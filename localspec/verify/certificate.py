"""Certificates: what was verified, on which files and machine, with which result."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec.bench.machine import FileFacts, Machine, file_facts
from localspec.errors import UsageError
from localspec.files import read_file
from localspec.gguf.names import parts_of
from localspec.identity import fingerprint
from localspec.llama.adapters import Adapter
from localspec.text import finite
from localspec.verify.checks import FAILED, INCOMPLETE, PASSED, Outcome

FORMAT = "localspec certificate 1"


@dataclass(slots=True, kw_only=True)
class Certificate:
    """The record of a verification. `target`, `draft`: files of the models, several if a model is
    split; `command`: the command line to repeat it; `effort`: name of an `Effort`, whose counts are
    in `settings`; `checks`: completed checks, in order; `missing`: names of the others."""

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
        """Failed if any check failed, incomplete if one is missing."""
        if any(check.faults for check in self.checks):
            return FAILED
        return INCOMPLETE if self.missing else PASSED

    def as_dict(self) -> dict[str, Any]:
        """JSON values; the last one is a checksum of the others."""
        values = {"format": FORMAT, "verdict": self.verdict, **asdict(self)}
        values["files"] = {name: values.pop(name) for name in ("target", "draft")}
        values["seconds"] = round(self.seconds, 1)
        for check, outcome in zip(values["checks"], self.checks, strict=True):
            check["verdict"] = outcome.verdict
        facts: dict[str, Any] = finite(values)
        return {**facts, "sha256": fingerprint(facts)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=2) + "\n"


def read(path: Path) -> dict[str, Any]:
    """A certificate's JSON values; a UsageError if it is not one, or was changed."""
    try:
        found = json.loads(read_file(path))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror or error}. Name the certificate.json that "
            "'localspec verify --output' wrote."
        ) from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(
            f"{path} is not a certificate of this version. Name the certificate.json that "
            "'localspec verify --output' wrote."
        )
    checksum = found.pop("sha256", None)
    if fingerprint(found) != checksum:
        raise UsageError(
            f"{path} was changed after it was written: its checksum does not match. "
            "Ask for the file as 'localspec verify --output' wrote it."
        )
    return found


_VERSIONS = {"localspec": True, "llama_cpp_python": True}
_VERSIONS |= dict.fromkeys(("commit", "cpu", "system", "python"), False)
"""Facts about the machine, and whether a certificate does not apply if they differ."""


@dataclass(frozen=True, slots=True)
class CertificateDifference:
    """A fact in the certificate and here, None if missing. `decides`: the certificate does not
    apply if they differ."""

    what: str
    certified: str | None
    here: str | None
    decides: bool

    @property
    def same(self) -> bool:
        return self.certified == self.here


def files_of(path: Path | None) -> tuple[FileFacts, ...]:
    """Facts about every file of a model, which is read completely; empty without a model."""
    if path is None:
        return ()
    return tuple(file_facts(path.with_name(name)) for name in parts_of(path.name))


def adapters_of(adapters: Sequence[Adapter]) -> list[str]:
    """The hash and scale of each adapter."""
    return [f"{file_facts(adapter.path).sha256}:{adapter.scale:g}" for adapter in adapters]


def compare(
    found: dict[str, Any],
    machine: Machine,
    target: Path,
    draft: Path | None,
    adapters: Mapping[str, Sequence[Adapter]],
) -> list[CertificateDifference]:
    """Compare a certificate's JSON values with the files and versions here. `adapters`: of the
    model and the draft model, by their names in `settings`. An OSError if a file cannot be read."""
    then, files, settings = found["machine"], found["files"], found["settings"]
    differences = [
        _decisive("model", [file["sha256"] for file in files["target"]], _hashes(target)),
        _decisive("draft model", [file["sha256"] for file in files["draft"]], _hashes(draft)),
    ]
    for what, key in (("adapters", "lora"), ("adapters of the draft model", "lora_draft")):
        row = _decisive(what, settings.get(key, []), adapters_of(adapters.get(key, ())))
        differences += [row] if row.here or row.certified else []
    for name, decides in _VERSIONS.items():
        here = str(getattr(machine, name))
        what = name.replace("_", " ")
        differences.append(CertificateDifference(what, str(then[name]), here, decides))
    return differences


def _decisive(what: str, certified: list[str], here: list[str]) -> CertificateDifference:
    return CertificateDifference(what, " ".join(certified) or None, " ".join(here) or None, True)


def _hashes(path: Path | None) -> list[str]:
    return [facts.sha256 for facts in files_of(path)]


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The verdict and each check as lines: a first column, and the text."""
    lines = [("", f"{found['verdict']}: {verdict(found)}"), ("", "")]
    for check in found["checks"]:
        early = "" if check["complete"] else " (as far as there was time)"
        lines.append((f"{check['verdict']:<8}", f"{check['check']}{early}"))
        lines += [(" " * 8, line) for line in (check["summary"], *check["faults"])]
    return [*lines, *((f"{'not run':<8}", name) for name in found["missing"])]


def verdict(found: dict[str, Any]) -> str:
    names = [check["check"] for check in found["checks"] if check["verdict"] == "failed"]
    if names:
        return f"localspec changes the output of this model ({', '.join(names)})."
    if found["missing"]:
        return f"nothing is wrong so far; not done: {', '.join(found['missing'])}."
    return f"no fault was found in {found['seconds']:.0f} s ({found['effort']})."


def comparison(found: dict[str, Any], differences: Sequence[CertificateDifference]) -> str:
    """A report on a certificate, and whether it applies to the files and versions here."""
    lines = []
    for difference in differences:
        state = "same" if difference.same else ("OTHER" if difference.decides else "other")
        shown = difference.here or "none"
        if not difference.same:
            shown = f"{shown}, in the certificate {difference.certified or 'none'}"
        lines.append(f"{state:<8}{difference.what}: {shown}")
    done = ", ".join(f"{check['check']} {check['verdict']}" for check in found["checks"])
    lines.append(f"run     {found['command']} on {found['date']}: {done or 'nothing'}")
    if found["missing"]:
        lines.append(f"not run {', '.join(found['missing'])}")
    about = all(difference.same for difference in differences if difference.decides)
    lines.append(
        f"The certificate says '{found['verdict']}', "
        + ("for these files and versions." if about else "but for other files or versions.")
    )
    return "\n".join(lines) + "\n"
