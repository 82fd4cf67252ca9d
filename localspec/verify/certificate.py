"""What was verified, on which files and machine, with which result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from localspec.bench.machine import FileFacts, Machine, file_facts
from localspec.errors import LocalspecError, UsageError
from localspec.files import read_file, write_atomically
from localspec.gguf.names import parts_of
from localspec.identity import fingerprint
from localspec.llama.adapters import Adapter
from localspec.text import finite
from localspec.verify.checks import FAILED, INCOMPLETE, PASSED, Outcome

FORMAT = "localspec certificate 1"


@dataclass(slots=True, kw_only=True)
class Certificate:
    """What was verified. `target`, `draft`: their files, several where a model is split; `command`:
    as it would be typed again; `effort`: name of an `Effort`, whose counts `settings` has;
    `checks`: those that were done, in order; `missing` names the others."""

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
        told = {"format": FORMAT, "verdict": self.verdict, **asdict(self)}
        told["files"] = {name: told.pop(name) for name in ("target", "draft")}
        told["seconds"] = round(self.seconds, 1)
        for check, one in zip(told["checks"], self.checks, strict=True):
            check["verdict"] = one.verdict
        facts: dict[str, Any] = finite(told)
        return {**facts, "sha256": fingerprint(facts)}


def write(certificate: Certificate, folder: Path) -> None:
    """Write certificate.json as a whole."""
    text = json.dumps(certificate.as_dict(), ensure_ascii=False, indent=2) + "\n"
    try:
        write_atomically(folder / "certificate.json", text)
    except OSError as error:
        raise LocalspecError(
            f"The certificate cannot be written into {folder}: {error.strerror or error}. Make "
            "room, or name another folder with --out."
        ) from None


def read(path: Path) -> dict[str, Any]:
    """A certificate's JSON values; a UsageError for none, or one that was changed."""
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


_VERSIONS = {"localspec": True, "llama_cpp_python": True}
_VERSIONS |= dict.fromkeys(("commit", "cpu", "system", "python"), False)
"""Facts about the machine, and whether a certificate is about something else if they differ."""


@dataclass(frozen=True, slots=True)
class CertificateDifference:
    """A fact here against the certificate's; None where there is none. `decides`: the certificate
    is about something else if they differ."""

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
    adapters: Mapping[str, Sequence[Adapter]],
) -> list[CertificateDifference]:
    """What is the same, and what is not, of a certificate's JSON values. `adapters`: of the model
    and the draft model, by their names in `settings`. A UsageError if it lacks something, an
    OSError if a file cannot be read."""
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


def rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The verdict, then each check: how a line begins, and its text."""
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
    """What a certificate says, and whether it is about what is here."""
    lines = []
    for one in differences:
        state = "same" if one.same else ("OTHER" if one.decides else "other")
        shown = one.here or "none"
        if not one.same:
            shown = f"{shown}, in the certificate {one.certified or 'none'}"
        lines.append(f"{state:<8}{one.what}: {shown}")
    done = ", ".join(f"{check['check']} {check['verdict']}" for check in found["checks"])
    lines.append(f"run     {found['command']} on {found['date']}: {done or 'nothing'}")
    if found["missing"]:
        lines.append(f"not run {', '.join(found['missing'])}")
    about = all(one.same for one in differences if one.decides)
    lines.append(
        f"The certificate says '{found['verdict']}', "
        + ("for these files and versions." if about else "but for other files or versions.")
    )
    return "\n".join(lines) + "\n"
