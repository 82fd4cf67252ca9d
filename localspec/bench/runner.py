"""Run all arms over all prompts, interleaved, so that drifts of the machine's speed cancel out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from localspec.bench.samples import Arm, BenchPrompt, Sample

ProgressCallback = Callable[[int, int, str], None]
"""Called before each answer with the numbers of answers done and in all, and a description."""

WARM_UP_TOKENS = 8

_Result = TypeVar("_Result")


def run(
    arms: Sequence[Arm],
    prompts: Sequence[BenchPrompt],
    temperatures: Sequence[float],
    *,
    turns: int,
    max_tokens: int,
    seed: int,
    dropped: dict[str, str],
    progress: ProgressCallback = lambda done, total, what: None,
) -> Iterator[Sample]:
    """Let every arm answer every prompt at every temperature.

    Turns run one after the other, and suites within a turn. All arms answer a prompt in succession,
    and the first one rotates. An arm that fails is added to `dropped`, with the reason. A prompt
    has the same seed in all arms and turns.
    """
    done, rotation = 0, 0
    left = list(arms)
    suites: dict[str, list[BenchPrompt]] = {}
    for prompt in prompts:
        suites.setdefault(prompt.suite, []).append(prompt)
    firsts = [some[0] for some in suites.values()]

    def attempt(arm: Arm, do: Callable[[], _Result]) -> _Result | None:
        try:
            return do()
        except Exception as error:
            left.remove(arm)
            dropped[arm.name] = str(error) or type(error).__name__
            return None

    def answer(
        arm: Arm, prompt: BenchPrompt, temperature: float, what: str, most: int = max_tokens
    ) -> Sample | None:
        # Arms may have been dropped, so the total is computed again.
        answers = len(prompts) * sum(turns if arm.every_turn else 1 for arm in left)
        progress(done, max(done, answers * len(temperatures)), what)
        generate = partial(arm.generate, prompt, temperature=temperature, seed=seed)
        return attempt(arm, partial(generate, max_tokens=min(most, max_tokens)))

    def answer_turn(temperature: float, turn: int) -> Iterator[Sample]:
        nonlocal done, rotation
        for arm in list(left):
            if turn == 0 or arm.every_turn:
                attempt(arm, arm.begin_turn)
        for prompt in (prompt for some in suites.values() for prompt in some):
            taking_part = [arm for arm in left if turn == 0 or arm.every_turn]
            first = rotation % max(1, len(taking_part))
            rotation += 1
            for arm in taking_part[first:] + taking_part[:first]:
                kind = "greedy" if temperature == 0 else f"T = {temperature:g}"
                what = f"{kind} · {prompt.suite} · turn {turn + 1} · {arm.name}"
                sample = answer(arm, prompt, temperature, what)
                if sample is not None:
                    which = replace(sample, arm=arm.name, suite=prompt.suite, prompt=prompt.id)
                    done += 1
                    yield replace(which, temperature=temperature, turn=turn)

    # The first pass has additional costs: allocations, page faults and measurements.
    if firsts and temperatures:
        for arm in list(left):
            answer(arm, firsts[0], temperatures[0], f"warming up {arm.name}", WARM_UP_TOKENS)
    for temperature in temperatures:
        for arm in [arm for arm in left if arm.practises]:
            for prompt in firsts:
                if arm in left:
                    answer(arm, prompt, temperature, f"{arm.name} practises {prompt.suite}")
        for turn in range(turns):
            yield from answer_turn(temperature, turn)
