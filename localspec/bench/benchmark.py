"""Open pairs, run the arms, and gather the report."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone

import localspec
from localspec import Engine, ModelOptions
from localspec.bench.arms import localspec_arms
from localspec.bench.machine import file_facts, this_machine
from localspec.bench.peers import Peers, open_peers
from localspec.bench.prompt_texts import render_prompts
from localspec.bench.report import PairResults, Report
from localspec.bench.runner import run
from localspec.bench.samples import Arm, BenchPrompt
from localspec.bench.scale import find_pair, scaled_pair

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPair:
    """The models to open: references as for `localspec.load`, or the name of a scale pair."""

    name: str
    target: str | None = None
    draft: str = "auto"
    scale: str | None = None
    offline: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Settings of a benchmark; see `localspec.bench.runner.run` and `localspec.bench.arms`."""

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
    notify: Notify,
    notices: Sequence[str],
) -> Report:
    """Measure the pairs one after the other; after Ctrl+C, return the results so far. Raises
    LocalspecError: a pair that cannot be opened."""
    report = Report(
        machine=this_machine(settings.options.fixed_threads),
        command=command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        settings={
            "turns": settings.turns,
            "max-tokens": settings.max_tokens,
            "seed": settings.seed,
            "prompts": len(settings.prompts),
            "ctx": settings.options.context,
        },
        pairs=[],
        notices=list(notices),
    )
    try:
        for pair in pairs:
            measure(pair, settings, report.pairs, notify)
    except KeyboardInterrupt:
        report.partial = True
    return report


def measure(
    pair: BenchPair, settings: BenchSettings, results: list[PairResults], notify: Notify
) -> None:
    """Measure a pair, adding results to `results` one by one."""
    target, draft = _prepare_files(pair, notify)
    with ExitStack() as stack:

        def open_engine() -> Engine:
            notify(f"{pair.name}: loading")
            return stack.enter_context(
                localspec.load(target, draft=draft, options=settings.options, offline=pair.offline)
            )

        engine = open_engine()
        notify(f"{pair.name}: preparing the prompts")
        prompts = render_prompts(engine, settings.prompts)
        arms: list[Arm] = [
            *localspec_arms(
                engine,
                settings.groups,
                # An arm without measurements must not profit from those of others.
                another=open_engine,
            )
        ]
        peers, refused = open_peers(engine, settings.peers, settings.options, stack)
        arms += peers
        notify(f"{pair.name}: reading the files")
        found = PairResults(
            name=pair.name,
            target=file_facts(engine.model.path),
            draft=None if engine.draft_path is None else file_facts(engine.draft_path),
            samples=[],
            commands={arm.name: arm.command for arm in arms},
            dropped=refused,
        )
        results.append(found)
        for sample in run(
            arms,
            prompts,
            settings.temperatures,
            turns=settings.turns,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
            dropped=found.dropped,
            progress=lambda done, total, what: notify(f"{pair.name} · {done} of {total} · {what}"),
        ):
            found.samples.append(sample)


def _prepare_files(pair: BenchPair, notify: Notify) -> tuple[str | None, str]:
    if pair.scale is not None:
        disk = find_pair(pair.scale).disk
        notify(f"{pair.name}: the scale models; a minute and {disk:g} GB of disk if they are new")
        target, draft = scaled_pair(pair.scale, offline=pair.offline)
        return str(target), str(draft) if pair.draft == "auto" else pair.draft
    return pair.target, pair.draft
