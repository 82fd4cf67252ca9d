"""A whole benchmark: opens pairs, lets the arms run, gathers the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import localspec
from localspec import Engine, ModelOptions
from localspec.bench.arms import localspec_arms
from localspec.bench.bound import Bounds, find_bounds
from localspec.bench.machine import file_facts, this_machine
from localspec.bench.peers import Peers, open_peers
from localspec.bench.report import PairResults, Report
from localspec.bench.runner import RunOutcome, run
from localspec.bench.samples import Arm, BenchPrompt

Tell = Callable[[str], None]
"""Called with what is going on, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPair:
    """What to open: references as `localspec.load` takes them, or the name of a scale pair."""

    name: str
    target: str | None = None
    draft: str = "auto"
    scale: str | None = None
    offline: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
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
    pairs: Sequence[BenchPair],
    settings: BenchSettings,
    *,
    command: str,
    tell: Tell,
    notices: Sequence[str],
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


def measure(pair: BenchPair, settings: BenchSettings, tell: Tell) -> PairResults:
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
        peers, refused = open_peers(engine, settings.peers, settings.options, stack)
        arms += peers
        tell(f"{pair.name}: reading the files")
        report = PairResults(
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


def _bounds(engine: Engine, outcome: RunOutcome, settings: BenchSettings) -> Bounds | None:
    known = engine.profile
    if not known.target:
        return None  # never calibrated: no arm had a planner
    draft = engine.draft_costs or None
    return find_bounds(engine, known.target, draft, outcome.samples, settings.prompts)


def _add_bounds(report: PairResults, found: Bounds | None) -> None:
    if found is not None:
        report.bounds = found.suites
        report.hardware = found.hardware
        report.curve = found.curve


def _described(settings: BenchSettings) -> dict[str, Any]:
    return {
        "turns": settings.turns,
        "max-tokens": settings.max_tokens,
        "seed": settings.seed,
        "prompts": len(settings.prompts),
        "ctx": settings.options.context,
    }
