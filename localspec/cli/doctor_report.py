"""The findings of `localspec doctor`, as text and as JSON."""

import dataclasses
from dataclasses import dataclass, field
from os.path import realpath
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.bench.machine import Machine
from localspec.cgroups import available_memory
from localspec.cli.tables import facts, indent, unbreakable
from localspec.doctor.checkup import PairMeasurements
from localspec.gguf.description import facts_of, quantization
from localspec.gguf.file import GGUFFile
from localspec.llama.devices import Device
from localspec.llama.kernels import KernelStatus
from localspec.pairing.forecast import PAYS
from localspec.pairing.rules import FAIL, OK, Check
from localspec.text import gigabytes, parameter_count, printable

_LEFT_OUT = ("memory", "backends", "devices", "versions")
"""Rows that a quick report omits."""
_SHORT = (2, 4, 8)
"""Pass sizes, in tokens, that a quick report shows."""
_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "unknown": "?   "}


@dataclass(slots=True)
class Findings:
    """All findings. `why`: reason for the draft model, if it was chosen automatically. `taken`: the
    one that `-d auto` takes after the measurement."""

    machine: Machine
    backends: tuple[str, ...]
    features: tuple[str, ...]
    devices: tuple[Device, ...]
    kernels: KernelStatus
    target: GGUFFile
    draft: GGUFFile | None
    target_name: str
    draft_name: str
    why: str
    checks: list[Check] = field(default_factory=list)
    measurements: PairMeasurements | None = None
    taken: Path | None = None

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if check.verdict == FAIL]

    @property
    def gain(self) -> float | None:
        """The measured speed-up; None if it was not measured or was disturbed."""
        return None if self.measurements is None else self.measurements.trusted


def as_json(found: Findings) -> dict[str, Any]:
    measured, gain = found.measurements, found.gain
    return {
        "machine": {
            **dataclasses.asdict(found.machine),
            "available_memory": available_memory()[0],
            "backends": found.backends,
            "features": found.features,
            "devices": found.devices,
            "kernels": found.kernels,
        },
        "target": _file(found.target, found.target_name),
        "draft": None if found.draft is None else _file(found.draft, found.draft_name),
        "why_draft": found.why or None,
        "checks": found.checks,
        "usable": not found.failed,
        "why_not": found.failed[0].evidence if found.failed else None,
        "calibration": measured
        and {
            **dataclasses.asdict(measured),
            "speed_up": measured.speed_up,
            "gains": measured.gains,
        },
        "recommendation": None
        if gain is None
        else {
            "use_draft": found.draft is not None and gain >= PAYS,
            "speed_up": gain,
            "sentence": _advice(found),
        },
    }


def _file(file: GGUFFile, name: str) -> dict[str, Any]:
    return {
        "path": file.path,
        "name": printable(name, 80),
        **dataclasses.asdict(facts_of(file)),
    }


def as_text(found: Findings, *, quick: bool) -> str:
    """The verdict, then the details. `quick`: only as many as fit a terminal of 24 lines."""
    machine = [row for row in _machine(found) if not (quick and row[0] in _LEFT_OUT)]
    parts = [facts(machine), facts(_pair(found, quick)), _checks(found.checks, quick)]
    if found.measurements is not None:
        measured = facts(_measured(found.measurements, quick))
        parts.append(f"{measured}Calibrated in {found.measurements.seconds:.0f} s.\n")
    details = ("" if quick else "\n").join(filter(None, parts))
    return f"{indent('', verdict(found))}\n{details}"


def verdict(found: Findings) -> str:
    if found.failed:
        return f"This pair cannot be used: {found.failed[0].evidence}."
    if found.measurements is None:
        return "This pair can be used. Its speed was not measured."
    if not found.measurements.steady or found.gain != found.measurements.speed_up:
        return "The machine was busy, so nothing is saved. Run it again on an idle machine."
    return _advice(found) or (
        "This pair can be used, but there was no time to measure its speed. Leave out --quick, or "
        "use a smaller model."
    )


def _machine(found: Findings) -> list[tuple[str, str]]:
    machine = found.machine
    gpus = [device for device in found.devices if device.kind != "CPU"]
    others = "\n".join(
        f"{printable(device.name)}: {printable(device.description)} ({device.kind}), "
        f"{gigabytes(device.free)} of {gigabytes(device.total)} free"
        for device in gpus
    )
    features = ", ".join(found.features)
    threads = "1 thread" if machine.threads == 1 else f"{machine.threads} threads"
    versions = f"localspec {machine.localspec}, llama-cpp-python {machine.llama_cpp_python}"
    return [
        ("machine", f"{machine.cpu}, cores: {machine.cores}, {threads} used"),
        ("memory", f"{gigabytes(available_memory()[0])} of {gigabytes(machine.memory)} available"),
        ("backends", ", ".join(found.backends) + (f" ({features})" if features else "")),
        ("devices", others or "CPU only"),
        ("kernels", found.kernels.words),
        ("versions", versions),
    ]


def _pair(found: Findings, quick: bool) -> list[tuple[str, str]]:
    def line(file: GGUFFile, name: str) -> str:
        what = f"{printable(name, 80)}, {parameter_count(file.n_parameters)} {quantization(file)}"
        return what if quick else f"{what}: {unbreakable(printable(str(file.path), 1000))}"

    draft = "none" if found.draft is None else line(found.draft, found.draft_name)
    why = [("", f"-d auto: {found.why}")] if found.why else []
    return [("target", line(found.target, found.target_name)), ("draft", draft), *why]


def _measured(found: PairMeasurements, quick: bool) -> list[tuple[str, str]]:
    rows = []
    if found.curve:
        single = found.curve[1]
        sizes = ", ".join(
            unbreakable(f"{n} tokens {seconds / single:.2f}×")
            for n, seconds in found.curve.items()
            if n in _SHORT or (n > 1 and not quick)
        )
        rows.append(("target pass", f"{1e3 * single:.1f} ms for one token; {sizes}"))
        if found.draft_seconds is not None and found.cost is not None:
            cost = f"{1e3 * found.draft_seconds:.1f} ms, {found.cost:.2f} of a target pass"
            rows.append(("draft pass", cost))
        rows += [] if quick else [("threads", found.threads)]
    gains = {name: f"{gain:.2f}×" for name, gain in found.gains.items()}
    drafts = {
        kind.name: f"{kind.acceptance:.0%} of {kind.tested}"
        for kind in found.kinds
        if kind.acceptance is not None
    }
    return rows + [
        (what, ", ".join(unbreakable(f"{name} {figure}") for name, figure in figures.items()))
        for what, figures in (("speed-up", gains), ("accepted", drafts))
        if figures
    ]


def _checks(checks: list[Check], quick: bool) -> str:
    """A line per check; if `quick`, one line for all that passed."""
    good = [check.rule for check in checks if check.verdict == OK] if quick else []
    lines = [indent("ok    ", ", ".join(good))] if good else []
    width = 2 + max((len(check.rule) for check in checks), default=0)
    for check in checks:
        if check.rule not in good:
            lines.append(indent(f"{_MARKS[check.verdict]}  {check.rule:<{width}}", check.evidence))
            if check.next_step:
                lines.append(indent(" " * (6 + width) + "→ ", check.next_step))
    return "".join(lines)


def _advice(found: Findings) -> str:
    gain = found.gain
    if gain is None or found.measurements is None:
        return ""
    gains = sorted((gain, kind) for kind, gain in found.measurements.gains.items())
    span = (
        f"{gain:.2f}× plain decoding, from {gains[0][0]:.2f}× ({gains[0][1]}) to "
        f"{gains[-1][0]:.2f}× ({gains[-1][1]})"
    )
    stock = found.measurements.stock
    if stock is not None:
        span += f"; plain decoding with localspec's kernels is {stock:.2f}× stock llama.cpp"
    if found.draft is None:
        return f"Without a draft model, drafting repeated text gives {span}."
    name = printable(found.draft_name or found.draft.path.stem)
    own = found.target.path.name == paths.EMBEDDED_TARGET  # its draft is fixed
    worth, auto = "worth" if gain >= PAYS else "not worth", " '-d auto' will not take it."
    if found.taken is not None and realpath(found.taken) == realpath(found.draft.path):
        auto = " '-d auto' will take it from now on."
    elif gain >= PAYS:
        other = "only the n-gram drafter" if found.taken is None else printable(found.taken.stem)
        auto = f" Name it with --draft, as '-d auto' takes {other}."
    return f"{name} is {worth} drafting with: {span}.{'' if own else auto}"
