"""Open pairs, run the arms, and gather the report."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone

from localspec import Engine, ModelOptions
from localspec.bench.arms import localspec_arms
from localspec.bench.machine import file_facts, this_machine
from localspec.bench.peers import Peers, open_peers
from localspec.bench.prompt_texts import render_prompts
from localspec.bench.report import PairResults, Report
from localspec.bench.runner import run
from localspec.bench.samples import Arm, BenchPrompt

Notify = Callable[[str], None]


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
    pairs: Mapping[str, Callable[[], Engine]],
    settings: BenchSettings,
    *,
    command: str,
    notify: Notify,
) -> Report:
    """Measure the pairs, which the values open, one after the other; after Ctrl+C, return the
    results so far. Raises LocalspecError: a pair that cannot be opened."""
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
    )
    try:
        for name, opener in pairs.items():
            measure(name, opener, settings, report.pairs, notify)
    except KeyboardInterrupt:
        report.partial = True
    return report


def measure(
    name: str,
    opener: Callable[[], Engine],
    settings: BenchSettings,
    results: list[PairResults],
    notify: Notify,
) -> None:
    """Measure a pair, adding results to `results` one by one."""
    with ExitStack() as stack:

        def open_engine() -> Engine:
            notify(f"{name}: loading")
            return stack.enter_context(opener())

        engine = open_engine()
        notify(f"{name}: preparing the prompts")
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
        notify(f"{name}: reading the files")
        found = PairResults(
            name=name,
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
            progress=lambda done, total, what: notify(f"{name} · {done} of {total} · {what}"),
        ):
            found.samples.append(sample)
