"""Open pairs, and run all arms over all prompts, interleaved, so that drifts of the machine's speed
cancel out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import count, product

from localspec import Engine, ModelOptions
from localspec.bench.arms import localspec_arms
from localspec.bench.machine import file_facts, this_machine
from localspec.bench.peers import Peers, open_peers
from localspec.bench.report import PairResults, Report
from localspec.bench.samples import Arm, BenchPrompt, Question, Sample
from localspec.bench.suites import by_suite, render_prompts

WARM_UP_TOKENS = 8

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """Settings of a benchmark. `prompts`: interleaved; `groups`: of `localspec.bench.arms`;
    `max_tokens`: of an answer; `seed`: of every prompt, in all arms and turns."""

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
        # An arm without measurements must not profit from those of others.
        arms: list[Arm] = [*localspec_arms(engine, settings.groups, open_engine)]
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
            replace(settings, prompts=prompts),
            found.dropped,
            lambda done, total, what: notify(f"{name} · {done} of {total} · {what}"),
        ):
            found.samples.append(sample)


def run(
    arms: Sequence[Arm],
    settings: BenchSettings,
    dropped: dict[str, str],
    progress: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> Iterator[Sample]:
    """Let every arm answer every prompt at every temperature.

    Turns run one after the other, and suites within a turn. All arms answer a prompt in succession,
    and the first one rotates. An arm that fails is added to `dropped`, with the reason. `progress`:
    gets the numbers of answers done and in all, and a description, before each answer.
    """
    left, done, rotation = list(arms), 0, count()
    temperatures, most = settings.temperatures, settings.max_tokens
    suites = by_suite(settings.prompts)
    prompts = [prompt for suite in suites.values() for prompt in suite]
    firsts = [suite[0] for suite in suites.values()]

    def ask(
        arm: Arm, prompt: BenchPrompt, temperature: float, what: str, most: int = most
    ) -> Sample | None:
        # Arms may have been dropped, so the total is computed again.
        answers = len(prompts) * sum(settings.turns if arm.every_turn else 1 for arm in left)
        progress(done, max(done, answers * len(temperatures)), what)
        try:
            return arm.generate(Question(prompt, temperature, settings.seed, most))
        except Exception as error:
            left.remove(arm)
            dropped[arm.name] = str(error) or type(error).__name__
            return None

    # The first pass has additional costs: allocations, page faults and measurements.
    for arm in arms:
        few = min(WARM_UP_TOKENS, most)
        ask(arm, firsts[0], temperatures[0], f"warming up {arm.name}", few)
    for temperature in temperatures:
        for arm, prompt in product([arm for arm in left if arm.practises], firsts):
            if arm in left:
                ask(arm, prompt, temperature, f"warming up {arm.name}: {prompt.suite}")
        kind = "greedy" if temperature == 0 else f"T = {temperature:g}"
        for turn, prompt in product(range(settings.turns), prompts):
            those = [arm for arm in left if turn == 0 or arm.every_turn]
            first = next(rotation) % max(1, len(those))
            for arm in those[first:] + those[:first]:
                what = f"{kind} · {prompt.suite} · turn {turn + 1} · {arm.name}"
                sample = ask(arm, prompt, temperature, what)
                if sample is not None:
                    done += 1
                    which = replace(sample, arm=arm.name, suite=prompt.suite, prompt=prompt.id)
                    yield replace(which, temperature=temperature, turn=turn)
