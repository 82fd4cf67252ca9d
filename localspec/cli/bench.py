"""`localspec bench`: measure speed, side by side with llama-server."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from localspec.cli import bench_options as b
from localspec.cli import options as o
from localspec.cli.output import Console
from localspec.cli.shared_options import DRAFT_MODEL, MODEL
from localspec.cli.working import Work, working
from localspec.errors import Cancelled, LocalspecError, UsageError

# The rest brings numpy and the engine with it, and `--help` wants to be quick.
if TYPE_CHECKING:
    from localspec.bench.benchmark import BenchPair, BenchSettings
    from localspec.bench.peers import Peers
    from localspec.bench.report import PairResults, Report

EXAMPLES = """\
Examples:
  localspec bench --quick
  localspec bench -m model.gguf -d draft.gguf --output report
  localspec bench --scale 1b --arms plain,depths --temp 0
  localspec bench --scale R0 --prompts questions --temp 0
  localspec bench -m smollm2 --scale-to 1728x30x3072:Q4_0
  localspec bench --scale A --llama-server llama-server"""

_WIDTH = 80


@o.takes(
    o.only(MODEL, "model", "offline", "ctx", "threads", "gpu_layers", "lora"),
    o.only(DRAFT_MODEL, "draft", "lora_draft", "cross_vocabulary"),
    b.BENCH,
    o.only(o.COMMON, "quiet", "verbose"),
)
def bench(context: typer.Context) -> int:
    """Compare configurations, plain decoding and other programs.

    All configurations answer the same prompts, interleaved. Speeds exclude
    the prompt. Ctrl+C stops and reports the results so far. Other drafters,
    for experiments, are listed in dev/drafters.md.
    """
    console: Console = context.obj
    output = context.params["output"] and Path(context.params["output"])
    with working(console, "Interrupted before anything was measured.") as work:
        report = _measured(context, console, work)
    try:
        # First what needs no disk: a full one must not cost the result.
        console.answer(report.to_json() + "\n" if context.params["json"] else _shown(report))
    finally:
        # And a reader who has seen enough, as `head`, must not cost the files.
        if output is not None:
            _write(report, output, console)
    if report.partial:
        raise Cancelled("Interrupted; the report covers the results so far.")
    return 0


def _write(report: Report, output: Path, console: Console) -> None:
    from localspec.bench import report_folder

    report_folder.write(report, output)
    console.notice(f"The report is in {output}.")


def _measured(context: typer.Context, console: Console, work: Work) -> Report:
    params = context.params
    if params["output"] is not None:
        from localspec.bench import report_folder

        report_folder.prepare(Path(params["output"]))
    peers = _peers(params)
    pairs, settings = _pairs_and_settings(params, peers)

    from localspec.bench.benchmark import benchmark

    report = benchmark(pairs, settings, command=console.command, tell=work.tell)
    console.erase_progress()
    if any(pair.samples for pair in report.pairs):
        for pair in report.pairs:
            for arm, why in pair.dropped.items():
                console.notice(f"{pair.name}: arm '{arm}' failed and is left out: {why}")
        return report
    if report.partial:
        raise KeyboardInterrupt
    reasons = [why for pair in report.pairs for why in pair.dropped.values()]
    raise LocalspecError(f"No arm could answer. The first error: {reasons[0]}")


def _pairs_and_settings(
    params: dict[str, Any], peers: Peers | None
) -> tuple[list[BenchPair], BenchSettings]:
    from localspec.bench.benchmark import BenchPair, BenchSettings
    from localspec.bench.scale import find_pair
    from localspec.bench.scaled_gguf import ModelShape
    from localspec.bench.suites import load_suites
    from localspec.cli.request import read_models

    if params["scale"] and params["model"]:
        raise UsageError("--scale excludes --model. Leave out one of them.")
    if params["scale"] and params["scale_to"]:
        raise UsageError("--scale excludes --scale-to. Leave out one of them.")
    if (params["lora"] or params["lora_draft"]) and (
        params["scale"] or params["scale_to"] or peers
    ):
        raise UsageError(
            "--lora and --lora-draft go with -m and -d as they are, and peers answer without. "
            "Leave them out, or --scale, --scale-to and --llama-server."
        )
    models = read_models(params)
    pairs = [
        BenchPair(
            name=f"scale {name}",
            scale=name,
            draft=models.draft if params["draft"] else "auto",
            offline=models.offline,
        )
        for name in params["scale"] or ()
    ]
    for pair in pairs:
        find_pair(str(pair.scale))  # raises for an unknown one
    if not pairs:
        shown = Path(models.model).name if models.model else "embedded pair"
        plain = BenchPair(
            name=shown, target=models.model, draft=models.draft, offline=models.offline
        )
        pairs = [
            replace(plain, name=f"{shown} {text}", shape=ModelShape.parse(text))
            for text in params["scale_to"] or ()
        ] or [plain]
    quick = params["quick"]
    per_suite = params["per_suite"]
    return pairs, BenchSettings(
        options=models.options,
        prompts=load_suites(
            [Path(path).expanduser() for path in params["prompts"] or ()],
            suites=params["suite"] or None,
            per_suite=per_suite
            if per_suite is not None
            else (b.QUICK_PER_SUITE if quick else b.PER_SUITE),
        ),
        temperatures=_temperatures(params["temp"]),
        groups=_groups(params["arms"]),
        turns=_count("turns", params["turns"], b.QUICK_TURNS if quick else b.TURNS),
        max_tokens=_count(
            "max-tokens", params["max_tokens"], b.QUICK_MAX_TOKENS if quick else b.MAX_TOKENS
        ),
        seed=_count("seed", params["seed"], b.SEED, least=0),
        peers=peers,
        all_turns=bool(params["all_turns"]),
    )


def _peers(params: dict[str, Any]) -> Peers | None:
    server, names = _server(params["llama_server"]), _names(params["server_configs"])
    if server is None:
        if names is not None:
            raise UsageError("--server-configs needs the server. Name it with --llama-server PATH.")
        return None
    from localspec.bench.peers import Peers
    from localspec.bench.server_configurations import server_configurations

    server_configurations(names)  # raises for an unknown one
    return Peers(server, names)


def _server(given: Path | None) -> Path | None:
    if given is None:
        return None
    path = Path(given).expanduser()
    if not path.is_file():
        raise UsageError(
            f"--llama-server names no file: {path}. Build llama.cpp's llama-server, "
            "or leave the option out."
        )
    return path


def _groups(arms: str | None) -> tuple[str, ...]:
    groups = _names(b.DEFAULT_ARMS if arms is None else arms) or ()
    for group in groups:
        if group not in b.ARMS:
            raise UsageError(f"There are no arms '{group}'. Choose from {', '.join(b.ARMS)}.")
    if not groups:
        raise UsageError(f"--arms is empty. Choose from {', '.join(b.ARMS)}.")
    return tuple(dict.fromkeys(groups))


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _temperatures(given: list[float] | None) -> tuple[float, ...]:
    found = tuple(dict.fromkeys(given or b.TEMPERATURES))
    for temperature in found:
        if not 0.0 <= temperature < math.inf:
            raise UsageError(f"temperature is {temperature:g}. Give 0 or more.")
    return found


def _count(name: str, given: int | None, default: int, *, least: int = 1) -> int:
    if given is None:
        return default
    if given < least:
        raise UsageError(f"{name} is {given}. Give {least} or more.")
    return given


def _shown(report: Report) -> str:
    from localspec.bench import terminal

    # In a pipe: for a terminal of the usual width.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    verdicts = "".join(f"{_verdict(pair)}\n" for pair in report.pairs if pair.samples)
    return f"{verdicts}\n{terminal.report_text(report, width)}"


def _verdict(pair: PairResults) -> str:
    """`scale A: localspec is 2.11× plain decoding (greedy), …`"""
    from localspec.bench.arms import PLANNER
    from localspec.bench.summary import ALL

    gains = []
    for temperature in pair.summary.temperatures:
        cell = pair.summary.cell(PLANNER, ALL, temperature)
        if cell is not None and cell.speed_up is not None:
            how = f"temperature {temperature:g}" if temperature else "greedy"
            gains.append(f"{cell.speed_up:.2f}× plain decoding ({how})")
    gain = f"localspec is {', '.join(gains)}" if gains else "plain decoding was not compared"
    return f"{pair.name}: {gain}."
