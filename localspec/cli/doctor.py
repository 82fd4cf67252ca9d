"""`localspec doctor`: the machine, the pair, and whether drafting is worth it here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import DRAFT_MODEL, MODEL
from localspec.cli.work import Work, working
from localspec.errors import Cancelled, DraftMismatch, LocalspecError

if TYPE_CHECKING:
    from localspec.cli.doctor_report import Findings
    from localspec.cli.request import OpeningOptions

EXAMPLES = """\
  localspec doctor
  localspec doctor -m target.gguf -d draft.gguf
  localspec doctor -m user/repo --quick --json
  localspec doctor --paths"""

DOCTOR = o.parameters("""
    --paths
        Print only the folders and files of localspec; LOCALSPEC_HOME moves them all.
Calibration:
    --quick
        Measure for at most 10 seconds instead of 60.
""")


# Without RPC servers, as it measures this machine, and without adapters, which change no checks.
@o.takes(o.without(MODEL, "rpc", "lora"), o.without(DRAFT_MODEL, "lora_draft"), DOCTOR, o.COMMON)
def doctor(console: Console, params: o.Params) -> None:
    """Checks whether model and draft model fit, and measures for up to a minute
    how much drafting gains. '-d auto' uses the result from then on. The exit
    code is not 0 if the pair cannot be used.
    """
    if params["paths"]:
        _print_paths(console)
        return
    from localspec.cli import doctor_report
    from localspec.cli.request import read_models

    models = read_models(params)
    quick = bool(params["quick"])
    with working(console, "Interrupted before anything was measured.") as work:
        findings = _examine(console, models, work, quick=quick)
    text = doctor_report.as_text(findings, quick=quick)
    console.result(doctor_report.as_json(findings), text)
    if findings.measurements is not None and (findings.measurements.partial or work.stopped):
        raise Cancelled("Interrupted; the report covers the results so far.")
    if findings.failed:
        words = any(check.rule == "token ids" for check in findings.failed)
        raise (DraftMismatch if words else LocalspecError)(doctor_report.verdict(findings))


def _print_paths(console: Console) -> None:
    from localspec import paths as places

    found = {
        "config": places.config_file().parent,
        "settings": places.config_file(),
        "data": places.data_folder(),
        "history": places.history_file(),
        "cache": places.cache_folder(),
    }
    console.result(found, "".join(f"{name:<10}{path}\n" for name, path in found.items()))


def _examine(console: Console, models: OpeningOptions, work: Work, *, quick: bool) -> Findings:
    from localspec.bench.machine import this_machine
    from localspec.cli.doctor_report import Findings
    from localspec.doctor.checkup import device_checks
    from localspec.gguf.heads import head_kind
    from localspec.gguf.reader import read_gguf
    from localspec.hub import resolution
    from localspec.hub.cache import require_usable
    from localspec.llama import devices, kernels
    from localspec.loading.draft import ChosenDraft, draft_for
    from localspec.pairing.memory import PairUse
    from localspec.pairing.rules import judge, unusable

    console.progress("looking at the files")
    options, none = models.options, models.draft == "none"
    found = resolution.find(models.model, offline=models.offline)
    require_usable(found.path, whole=not quick)
    target = read_gguf(found.path)
    console.notices(found.notices)
    wanted = "auto" if none else models.draft
    chosen = draft_for(found.path, wanted, options, offline=models.offline)
    console.notices(chosen.notices)
    if none:
        instead = "only the n-gram drafter" if chosen.path is None else chosen.name
        chosen = ChosenDraft(automatic=True, why=f"none was given; -d auto would take {instead}")
    if chosen.path is not None and not chosen.own_mtp:
        require_usable(chosen.path, head=True, whole=not quick)
    draft = None if chosen.path is None else read_gguf(chosen.path)
    findings = Findings(
        this_machine(options.fixed_threads),
        tuple(devices.backends()),
        tuple(devices.features()),
        tuple(devices.devices()),
        kernels.status_for(options.kernels),
        target,
        draft,
        resolution.name_of(models.model, found.path),
        chosen.name,
        (chosen.why or chosen.why_none or "") if chosen.automatic else "",
    )
    # Whether a trained head fits is checked where it is opened.
    if draft is not None and not chosen.own_mtp and head_kind(draft.path) is None:
        device_free = devices.free_memory() if options.gpu_layers < 0 else 0
        use = PairUse(options=options, device_free=device_free)
        bad = unusable(draft)
        findings.checks += (bad,) if bad is not None else judge(target, draft, use)
    if options.gpu_layers:
        findings.checks += device_checks(target, draft, options, findings.devices)
    if not findings.failed:
        _measure(console, findings, models, work, quick=quick)
    return findings


def _measure(
    console: Console, findings: Findings, models: OpeningOptions, work: Work, *, quick: bool
) -> None:
    from localspec import paths as places
    from localspec.doctor import checkup
    from localspec.loading.draft import draft_for
    from localspec.loading.second_engine import measure_stock
    from localspec.pairing import auto

    options, target = models.options, findings.target.path
    draft = None if findings.draft is None else findings.draft.path
    with work.load(replace(models, model=str(target), draft=str(draft or "none"))) as engine:
        findings.checks += [checkup.text_check(engine)]
        if findings.failed:
            return
        console.progress("calibrating: plain llama.cpp")
        measure_stock(engine, options)
        findings.measurements = checkup.measure_pair(
            engine,
            checkup.QUICK if quick else checkup.LONG,
            report=lambda text: console.progress(f"calibrating: {text}"),
            stopped=lambda: work.stopped,
        )
    found = findings.measurements
    if draft is not None and found.trusted is not None and not found.partial:
        auto.store_speed_up(target, draft, found.trusted, options)
        if not auto.measured_speed_ups(target, options):
            why = f"The result cannot be saved in {places.cache_folder()}"
            console.notice(
                f"{why}, so '-d auto' does not know it. Set LOCALSPEC_HOME to change it."
            )
    findings.taken = draft_for(target, "auto", options, offline=models.offline).path
