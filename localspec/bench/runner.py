"""Runs all arms over all prompts, interleaved, so that a drifting machine favours none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from localspec.bench.samples import Arm, BenchPrompt, Sample

ProgressCallback = Callable[[int, int, str], None]
"""Called before each answer with answers done, answers to do, and what runs."""

WARM_UP_TOKENS = 8

_Result = TypeVar("_Result")


@dataclass(slots=True)
class RunOutcome:
    """`dropped` says why arms failed, `partial` that the run was interrupted."""

    samples: list[Sample] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    partial: bool = False


@dataclass(frozen=True, slots=True)
class _Task:
    """One answer to take; where it does not count, it warms up or practises."""

    arm: Arm
    prompt: BenchPrompt
    temperature: float
    turn: int
    what: str
    counts: bool = True
    most: int | None = None


def run(
    arms: Sequence[Arm],
    prompts: Sequence[BenchPrompt],
    temperatures: Sequence[float],
    *,
    turns: int,
    max_tokens: int,
    seed: int,
    progress: ProgressCallback | None = None,
    turns_of: Callable[[Arm], int] | None = None,
    practises: Callable[[Arm], bool] | None = None,
) -> RunOutcome:
    """Let every arm answer every prompt at every temperature; after Ctrl+C, return what there is.

    Turn by turn, and in a turn suite by suite. All arms answer a prompt one after the other, and
    the first of them rotates. An arm that fails is dropped.

    Args:
        seed: the same for a prompt in all arms and turns.
        turns_of: an arm's turns, at most `turns`, which is the default.
        practises: whether an arm first answers each suite's first prompt at each temperature,
            uncounted.
    """
    outcome = RunOutcome()
    left = list(arms)
    turns_of_arm = {arm.name: min(turns, turns_of(arm)) if turns_of else turns for arm in arms}

    def attempt(arm: Arm, do: Callable[[], _Result]) -> _Result | None:
        try:
            return do()
        except Exception as error:
            left.remove(arm)
            outcome.dropped[arm.name] = str(error) or type(error).__name__
            return None

    def tell(what: str) -> None:
        if progress is not None:
            # Arms may have been dropped: what is left is counted again.
            done = len(outcome.samples)
            answers = len(prompts) * sum(turns_of_arm[arm.name] for arm in left)
            progress(done, max(done, answers * len(temperatures)), what)

    def begin(turn: int) -> list[Arm]:
        for arm in list(left):
            if turn < turns_of_arm[arm.name]:
                attempt(arm, arm.begin_turn)
        return [arm for arm in left if turn < turns_of_arm[arm.name]]

    try:
        for task in _tasks(left, prompts, temperatures, turns, begin, practises):
            if task.arm not in left:
                continue
            tell(task.what)
            answer = partial(
                task.arm.generate,
                task.prompt,
                temperature=task.temperature,
                seed=seed,
                max_tokens=min(max_tokens, task.most or max_tokens),
                turn=task.turn,
            )
            sample = attempt(task.arm, answer)
            if sample is not None and task.counts:
                outcome.samples.append(sample)
    except KeyboardInterrupt:
        outcome.partial = True
    return outcome


def _tasks(
    left: Sequence[Arm],
    prompts: Sequence[BenchPrompt],
    temperatures: Sequence[float],
    turns: int,
    begin: Callable[[int], list[Arm]],
    practises: Callable[[Arm], bool] | None,
) -> Iterator[_Task]:
    """All answers in their order; `left` and `begin` say which arms still take part."""
    suites: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        suites.setdefault(prompt.suite, []).append(prompt)
    firsts = [some[0] for some in suites.values()]
    # The first pass pays for allocations, page faults and measurements that no later one has.
    if firsts and temperatures:
        for arm in list(left):
            what = f"warming up {arm.name}"
            yield _Task(arm, firsts[0], temperatures[0], 0, what, False, WARM_UP_TOKENS)
    rotation = 0
    for temperature in temperatures:
        for arm in [arm for arm in left if practises and practises(arm)]:
            for prompt in firsts:
                what = f"{arm.name} practises {prompt.suite}"
                yield _Task(arm, prompt, temperature, 0, what, False)
        kind = "greedy" if temperature == 0 else f"T = {temperature:g}"
        for turn in range(turns):
            taking_part = begin(turn)
            for prompt in (prompt for some in suites.values() for prompt in some):
                taking_part = [arm for arm in taking_part if arm in left]
                if not taking_part:
                    break
                first = rotation % len(taking_part)
                rotation += 1
                for arm in taking_part[first:] + taking_part[:first]:
                    what = f"{kind} · {prompt.suite} · turn {turn + 1} · {arm.name}"
                    yield _Task(arm, prompt, temperature, turn, what)
