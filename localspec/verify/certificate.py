"""Certificates: checks of an open engine as JSON values, with its files, versions and machine."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter
from typing import Any

from localspec.bench.machine import FileFacts, file_facts, this_machine
from localspec.engine import Engine
from localspec.errors import UsageError, describe
from localspec.files import require_file
from localspec.gguf.names import parts_of
from localspec.identity import fingerprint
from localspec.llama import kernels
from localspec.llama.options import Adapter, ModelOptions
from localspec.text import finite
from localspec.verify.cache_state import check_cache_state
from localspec.verify.checks import FAILED, INCOMPLETE, PASSED, Deadline, Effort, Outcome
from localspec.verify.greedy import check_grammar, check_greedy
from localspec.verify.sampled import check_sampled
from localspec.verify.subject import Subject

FORMAT = "localspec certificate 1"
CHECKS: dict[str, tuple[Callable[[Subject, Effort, Deadline], Outcome], float]] = {
    "greedy": (check_greedy, 0.45),
    "sampled": (check_sampled, 0.7),
    "KV cache": (check_cache_state, 0.9),
    "grammar": (check_grammar, 1.0),
}
"""Checks by name, each with the share of the time after which it should end. The first check stores
in the `Subject` the measurements that the others use."""
_OPTIONS = {"gpu_layers": "gpu_layers", "kv_type": "kv_type_k"}
_OPTIONS |= {name: name for name in ("flash_attention", "exact")}
"""Names in a certificate of options that change passes: it applies only to the same ones."""
MIN_CONTEXT = 512
"""Tokens: a prompt takes a quarter at most, an answer up to 128."""


def new_certificate(
    engine: Engine, options: ModelOptions, effort: Effort, command: str
) -> dict[str, Any]:
    """A certificate without checks; reads the files completely. `missing`: names of checks that are
    not done. A UsageError if the context is too short."""
    if engine.context_length < MIN_CONTEXT:
        raise UsageError(
            f"The context of {engine.context_length} tokens is too short to verify anything in. "
            f"Give --ctx {MIN_CONTEXT} or more."
        )
    paths = {"target": engine.model.path, "draft": engine.draft_path}
    return {
        "format": FORMAT,
        "verdict": INCOMPLETE,
        "machine": asdict(this_machine(options.fixed_threads)),
        "command": command,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "effort": effort.name,
        "settings": {
            **asdict(effort),
            "context": engine.context_length,
            "threads": options.threads,
            **{name: getattr(options, option) for name, option in _OPTIONS.items()},
            "kernels": engine.model.kernels.words,
            "whose_kernels": kernels.status_for(options.kernels).whose,  # for models that fit
            "bit_for_bit": engine.batch_invariant,
            "lora": adapters_of(options.adapters),
            "lora_draft": adapters_of(options.draft_adapters),
        },
        "seconds": 0.0,
        "checks": [],
        "missing": [*CHECKS],
        "files": {name: [asdict(file) for file in files_of(path)] for name, path in paths.items()},
    }


def examine(
    engine: Engine, effort: Effort, certificate: dict[str, Any], report: Callable[[str], None]
) -> None:
    """Run the checks, adding each to the certificate as soon as it is done. `report` may raise
    KeyboardInterrupt; the certificate then has the checks done so far."""
    subject, started = Subject(engine, report), perf_counter()
    checks, missing = certificate["checks"], certificate["missing"]
    for name, (check, until) in CHECKS.items():
        left = None
        if effort.seconds is not None:
            left = until * effort.seconds - (perf_counter() - started)
        try:
            outcome = check(subject, effort, Deadline(left))
        except Exception as error:
            outcome = Outcome(
                faults=(f"It ended in an error: {describe(error)[0]}",),
                summary="An answer could not be given.",
                figures={},
                complete=False,
            )
        verdict = FAILED if outcome.faults else PASSED
        checks.append({"check": name, **asdict(outcome), "verdict": verdict})
        missing.remove(name)
        certificate["seconds"] = round(perf_counter() - started, 1)
        certificate["verdict"] = INCOMPLETE if missing else PASSED
        if any(check["faults"] for check in checks):
            certificate["verdict"] = FAILED


def sealed(certificate: dict[str, Any]) -> dict[str, Any]:
    """The certificate with a checksum of its values, as JSON has them."""
    facts: dict[str, Any] = finite(certificate)
    return {**facts, "sha256": fingerprint(facts)}


def read(path: Path) -> dict[str, Any]:
    """A certificate's JSON values; a UsageError if it is not one, or was changed."""
    written = "Name the certificate.json that 'localspec verify --output' wrote."
    data = require_file(path, written)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{path} is not a certificate of this version. {written}")
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
    found: dict[str, Any], options: ModelOptions, target: Path, draft: Path | None
) -> list[CertificateDifference]:
    """Compare a certificate's JSON values with the files and versions here. An OSError if a file
    cannot be read."""
    machine, settings = asdict(this_machine(options.fixed_threads)), found["settings"]
    files = {name: [file["sha256"] for file in files] for name, files in found["files"].items()}
    whose = kernels.status_for(options.kernels).whose
    facts = [
        ("model", files["target"], [file.sha256 for file in files_of(target)]),
        ("draft model", files["draft"], [file.sha256 for file in files_of(draft)]),
        ("adapters", settings.get("lora", []), adapters_of(options.adapters)),
        (
            "adapters of the draft model",
            settings.get("lora_draft", []),
            adapters_of(options.draft_adapters),
        ),
        *(
            (name, [str(settings.get(name))], [str(getattr(options, option))])
            for name, option in _OPTIONS.items()
        ),
        ("kernels", [settings.get("whose_kernels", whose)], [whose]),
        *((name, [str(found["machine"][name])], [str(machine[name])]) for name in _VERSIONS),
    ]
    return [
        CertificateDifference(
            what.replace("_", " "),
            " ".join(certified) or None,
            " ".join(here) or None,
            _VERSIONS.get(what, True),
        )
        for what, certified, here in facts
        if certified or here
    ]


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
        return f"no fault was found so far; not done: {', '.join(found['missing'])}."
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
