"""The options of `localspec bench`; see `localspec.cli.options.takes`."""

from __future__ import annotations

from pathlib import Path

from localspec.cli.options import OUTPUT, in_panel

ARMS = ("plain", "planner", "cold", "drafters", "depths", "trees")
DEFAULT_ARMS = "plain,planner,cold,drafters"
TEMPERATURES = (0.0, 0.8)
SEED = 1
PER_SUITE, MAX_TOKENS, TURNS = 4, 128, 3
QUICK_PER_SUITE, QUICK_MAX_TOKENS, QUICK_TURNS = 1, 32, 1
_what, _how = in_panel("What to measure"), in_panel("How to measure")
_who, _output = in_panel("Side by side"), in_panel(OUTPUT)

BENCH = {
    "scale": _what(
        list[str],
        "--scale",
        metavar="NAME",
        help="Instead of -m and -d, models of realistic size that say what the embedded pair "
        "says, written into the cache folder: 1b, A, B or C. Repeatable.",
    ),
    "suite": _what(list[str], "--suite", metavar="NAME", help="Only this suite. Repeatable."),
    "prompts": _what(
        list[Path],
        "--prompts",
        metavar="FILE",
        help="Prompts of your own instead of the built-in suites: JSON lines with prompt, suite "
        "and id. Repeatable.",
    ),
    "per_suite": _what(
        int, "--per-suite", metavar="N", help=f"Prompts of each suite. Default {PER_SUITE}."
    ),
    "max_tokens": _what(
        int, "-n", "--max-tokens", metavar="N", help=f"Longest answer. Default {MAX_TOKENS}."
    ),
    "temp": _what(
        list[float],
        "--temp",
        "--temperature",
        metavar="X",
        help="Sampling temperature, 0 is greedy. Repeatable. Default 0 and 0.8.",
    ),
    "arms": _what(
        str,
        "--arms",
        metavar="LIST",
        help=f"What to compare, with commas: {', '.join(ARMS)}. Default {DEFAULT_ARMS}.",
    ),
    "sweep": _what(
        bool, "--sweep", help="Add fixed depths 1 to 8 of the draft model (arms 'depths')."
    ),
    "turns": _how(int, "--turns", metavar="N", help=f"Repetitions, for medians. Default {TURNS}."),
    "quick": _how(
        bool,
        "--quick",
        help=f"A first look: --per-suite {QUICK_PER_SUITE} -n {QUICK_MAX_TOKENS} "
        f"--turns {QUICK_TURNS}, where nothing else is said.",
    ),
    "seed": _how(int, "--seed", metavar="N", help=f"Of the sampling. Default {SEED}."),
    "peers": _who(
        bool,
        "--peers",
        help="Run llama-cpp-python's Llama, plain and with prompt lookup, on the same files and "
        "prompts.",
    ),
    "llama_server": _who(
        Path,
        "--llama-server",
        metavar="PATH",
        help="Run llama.cpp's llama-server, in all its ways to speculate.",
    ),
    "server_configs": _who(
        str,
        "--server-configs",
        metavar="LIST",
        help="Which of its configurations to run, with commas. Default all that the pair allows.",
    ),
    "output": _output(
        Path,
        "--output",
        metavar="FOLDER",
        help="Write report.md, report.html, report.json and the figures into this folder.",
    ),
    "json": _output(bool, "--json", help="All samples and figures as JSON instead of tables."),
}
