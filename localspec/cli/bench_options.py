"""The options of `localspec bench`, as typer wants them declared; see `localspec.cli.options`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from localspec.cli import options as o

ARMS = ("plain", "planner", "cold", "drafters", "depths", "trees")
DEFAULT_ARMS = "plain,planner,cold,drafters"
TEMPERATURES = (0.0, 0.8)
PER_SUITE, MAX_TOKENS, TURNS = 4, 128, 3
QUICK_PER_SUITE, QUICK_MAX_TOKENS, QUICK_TURNS = 1, 32, 1
_WHAT, _HOW, _WHO = "What to measure", "How to measure", "Side by side"

Scale = Annotated[
    list[str] | None,
    o._option(
        "--scale",
        panel=o.MODEL,
        metavar="NAME",
        help="Instead of -m and -d, models of realistic size that say what the embedded pair "
        "says, written into the cache folder: 1b, A, B or C. Repeatable.",
    ),
]
Suite = Annotated[
    list[str] | None,
    o._option("--suite", panel=_WHAT, metavar="NAME", help="Only this suite. Repeatable."),
]
Prompts = Annotated[
    list[Path] | None,
    o._option(
        "--prompts",
        panel=_WHAT,
        metavar="FILE",
        help="Prompts of your own instead of the built-in suites: JSON lines with prompt, suite "
        "and id. Repeatable.",
    ),
]
PerSuite = Annotated[
    int | None,
    o._option(
        "--per-suite",
        panel=_WHAT,
        metavar="N",
        help=f"Prompts of each suite. Default {PER_SUITE}.",
    ),
]
MaxTokens = Annotated[
    int | None,
    o._option(
        *("-n", "--max-tokens"),
        panel=_WHAT,
        metavar="N",
        help=f"Longest answer. Default {MAX_TOKENS}.",
    ),
]
Temperatures = Annotated[
    list[float] | None,
    o._option(
        *("--temp", "--temperature"),
        panel=_WHAT,
        metavar="X",
        help="Sampling temperature, 0 is greedy. Repeatable. Default 0 and 0.8.",
    ),
]
Arms = Annotated[
    str | None,
    o._option(
        "--arms",
        panel=_WHAT,
        metavar="LIST",
        help=f"What to compare, with commas: {', '.join(ARMS)}. Default {DEFAULT_ARMS}.",
    ),
]
Sweep = Annotated[
    bool,
    o._option(
        "--sweep", panel=_WHAT, help="Add fixed depths 1 to 8 of the draft model (arms 'depths')."
    ),
]
Turns = Annotated[
    int | None,
    o._option(
        "--turns", panel=_HOW, metavar="N", help=f"Repetitions, for medians. Default {TURNS}."
    ),
]
Quick = Annotated[
    bool,
    o._option(
        "--quick",
        panel=_HOW,
        help=f"A first look: --per-suite {QUICK_PER_SUITE} -n {QUICK_MAX_TOKENS} "
        f"--turns {QUICK_TURNS}, where nothing else is said.",
    ),
]
Seed = Annotated[
    int, o._option("--seed", panel=_HOW, metavar="N", help="Of the sampling. Default 1.")
]
WithPeers = Annotated[
    bool,
    o._option(
        "--peers",
        panel=_WHO,
        help="Run llama-cpp-python's Llama, plain and with prompt lookup, on the same files and "
        "prompts.",
    ),
]
LlamaServer = Annotated[
    Path | None,
    o._option(
        "--llama-server",
        panel=_WHO,
        metavar="PATH",
        help="Run llama.cpp's llama-server, in all its ways to speculate.",
    ),
]
ServerConfigs = Annotated[
    str | None,
    o._option(
        "--server-configs",
        panel=_WHO,
        metavar="LIST",
        help="Which of its configurations to run, with commas. Default all that the pair allows.",
    ),
]
Output = Annotated[
    Path | None,
    o._option(
        "--output",
        panel=o.OUTPUT,
        metavar="FOLDER",
        help="Write report.md, report.html, report.json and the figures into this folder.",
    ),
]
Json = Annotated[
    bool,
    o._option("--json", panel=o.OUTPUT, help="All samples and figures as JSON instead of tables."),
]
Quiet = Annotated[
    bool, o._option("-q", "--quiet", panel=o.OUTPUT, help="Nothing but the figures and errors.")
]
