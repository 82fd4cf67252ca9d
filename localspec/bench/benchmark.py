"""A whole benchmark: opens pairs, lets the arms run, gathers the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import localspec
from localspec import Engine, ModelOptions
from localspec.bench.arms import localspec_arms
from localspec.bench.bound import Bounds, find_bounds, prompt_tokens
from localspec.bench.machine import file_facts, this_machine
from localspec.bench.records import Arm, BenchPrompt
from localspec.bench.report import PairReport, Report
from localspec.bench.runner import Outcome, run

if TYPE_CHECKING:
    from localspec.bench.server_configurations import Configuration

Tell = Callable[[str], None]
"""Called with what is going on, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What to open: references as `localspec.load` takes them, or the name of a scale pair."""

    name: str
    target: str | None = None
    draft: str = "auto"
    scale: str | None = None
    offline: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Whom to measure beside localspec.

    Attributes:
        llama_server: the program; None leaves it out.
        configurations: names of the ways it runs, None for all that the pair allows.
        python: llama-cpp-python's `Llama`, plain and with prompt lookup.
    """

    llama_server: Path | None = None
    configurations: tuple[str, ...] | None = None
    python: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to measure; see `localspec.bench.runner.run` and `localspec.bench.arms`."""

    options: ModelOptions
    prompts: Sequence[BenchPrompt]
    temperatures: Sequence[float]
    groups: Sequence[str]
    turns: int
    max_tokens: int
    seed: int
    peers: Peers | None = None


def benchmark(
    pairs: Sequence[Pair], settings: Settings, *, command: str, tell: Tell, notices: Sequence[str]
) -> Report:
    """Measure the pairs one after the other.

    Args:
        command: the command line, for the report.
        notices: what the report should say at its top.

    Returns:
        What there is, also after Ctrl+C.

    Raises:
        LocalspecError: a pair that cannot be opened.
    """
    from localspec.llama.library import default_threads

    report = Report(
        machine=this_machine(settings.options.threads or default_threads()),
        command=command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        settings=_described(settings),
        pairs=[],
        notices=list(notices),
    )
    try:
        for pair in pairs:
            measured = measure(pair, settings, tell)
            report.pairs.append(measured)
            if measured.partial:
                break
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def measure(pair: Pair, settings: Settings, tell: Tell) -> PairReport:
    """Measure one pair.

    Raises:
        LocalspecError: it cannot be opened.
    """
    target, draft = pair.target, pair.draft
    if pair.scale is not None:
        from localspec.bench.scale import scaled_pair

        tell(f"{pair.name}: writing the scale models")
        target, draft = map(str, scaled_pair(pair.scale))
    with ExitStack() as stack:

        def opened() -> Engine:
            tell(f"{pair.name}: loading")
            return stack.enter_context(
                localspec.load(target, draft=draft, options=settings.options, offline=pair.offline)
            )

        engine = opened()
        arms: list[Arm] = [
            *localspec_arms(
                engine,
                settings.groups,
                # What others learn on the same prompts must not reach the arm that knows nothing.
                cold_engine=opened() if "cold" in settings.groups else None,
            )
        ]
        peers, refused = _peers(engine, settings, stack)
        arms += peers
        tell(f"{pair.name}: reading the files")
        report = PairReport(
            name=pair.name,
            target=file_facts(engine.model.path),
            draft=None if engine.draft_path is None else file_facts(engine.draft_path),
            samples=[],
            commands={arm.name: arm.command for arm in arms},
        )

        def progress(done: int, total: int, what: str) -> None:
            tell(f"{pair.name} · {done} of {total} · {what}")

        outcome = run(
            arms,
            settings.prompts,
            settings.temperatures,
            turns=settings.turns,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            progress=progress,
            turns_of=lambda arm: settings.turns if _repeats(arm) else 1,
        )
        report.samples, report.dropped = outcome.samples, refused | outcome.dropped
        report.partial = outcome.partial
        if not outcome.partial:
            try:
                tell(f"{pair.name}: working out the bound")
                _add_bounds(report, _bounds(engine, outcome, settings))
            except KeyboardInterrupt:
                report.partial = True
    return report


def _repeats(arm: Arm) -> bool:
    """Peers' many configurations run once, but what others are compared with runs every turn."""
    return arm.family == "localspec" or arm.name.endswith("plain")


def _peers(
    engine: Engine, settings: Settings, stack: ExitStack
) -> tuple[list[Arm], dict[str, str]]:
    """The other programs, on the same files; and those that cannot take part, with the reasons."""
    peers = settings.peers
    if peers is None:
        return [], {}
    from localspec.bench.peers_python import (
        LOOKUPS,
        PythonLlama,
        Transformers,
        why_no_transformers,
    )
    from localspec.bench.peers_server import LlamaServer
    from localspec.bench.server_configurations import server_configurations
    from localspec.llama.amx_check import weight_buffers_work
    from localspec.llama.library import default_threads

    target = engine.model.path
    draft = engine.draft_path
    threads = settings.options.threads or default_threads()
    context, layers = engine.context_length, settings.options.gpu_layers

    def tokenize(text: str) -> list[int]:
        return prompt_tokens(engine, text)

    def python(lookup: int | None) -> Arm:
        return PythonLlama(
            target,
            tokenize=tokenize,
            threads=threads,
            context=context,
            gpu_layers=layers,
            lookup=lookup,
        )

    def transformers(assistant: Path | None) -> Arm:
        return Transformers(
            target,
            assistant,
            tokenize=tokenize,
            ends=engine.model.vocabulary.ends,
            threads=threads,
        )

    def server(binary: Path, configuration: Configuration) -> Arm:
        return LlamaServer(
            binary,
            target,
            draft,
            configuration,
            tokenize=tokenize,
            threads=threads,
            context=context,
            gpu_layers=layers,
            weight_buffers=weight_buffers_work(),
            # A peer sees each prompt once at each temperature, so what it remembers of other
            # prompts is what its users get.
            fresh=False,
        )

    refused: dict[str, str] = {}
    openings: dict[str, Callable[[], Arm]] = {
        f"llama-cpp-python, lookup {lookup}": partial(python, lookup)
        for lookup in (LOOKUPS if peers.python else ())
    }
    why_not = why_no_transformers(target) if peers.python else None
    if peers.python and why_not is None:
        openings["transformers plain"] = partial(transformers, None)
        if draft is not None:
            openings["transformers assisted"] = partial(transformers, draft)
    elif why_not is not None:
        refused["transformers"] = why_not
    if peers.llama_server is not None:
        for configuration in server_configurations(peers.configurations):
            # Named or not: without a draft model there is nothing it could do.
            if draft is not None or not configuration.needs_draft:
                openings[f"llama-server {configuration.name}"] = partial(
                    server, peers.llama_server, configuration
                )
    arms: list[Arm] = []
    for name, opening in openings.items():
        arm = _opened(name, opening, refused)
        if arm is not None:
            stack.callback(_close, arm)
            arms.append(arm)
    return arms, refused


def _opened(name: str, opening: Callable[[], Arm], refused: dict[str, str]) -> Arm | None:
    # A peer that does not work is told about; what was asked for is localspec's figures.
    try:
        return opening()
    except Exception as error:
        refused[name] = str(error) or type(error).__name__
        return None


def _close(arm: Arm) -> None:
    # One that does not end in order must not take the report with it.
    with suppress(Exception):
        arm.close()


def _bounds(engine: Engine, outcome: Outcome, settings: Settings) -> Bounds | None:
    known = engine.knowledge
    if not known.target:
        return None  # never calibrated: no arm had a planner
    return find_bounds(engine, known.target, known.draft or None, outcome.samples, settings.prompts)


def _add_bounds(report: PairReport, found: Bounds | None) -> None:
    if found is not None:
        report.bounds = found.suites
        report.hardware = found.hardware
        report.curve = found.curve


def _described(settings: Settings) -> dict[str, Any]:
    return {
        "turns": settings.turns,
        "max-tokens": settings.max_tokens,
        "seed": settings.seed,
        "prompts": len(settings.prompts),
        "ctx": settings.options.context,
    }
