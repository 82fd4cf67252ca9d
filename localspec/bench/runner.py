"""Run all arms over all prompts, interleaved, so that drifts of the machine's speed cancel out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, product

from localspec.bench.samples import Arm, BenchPrompt, Question, Sample
from localspec.bench.suites import by_suite

_ProgressCallback = Callable[[int, int, str], None]
"""Called before each answer with the numbers of answers done and in all, and a description."""

WARM_UP_TOKENS = 8


def run(
    arms: Sequence[Arm],
    prompts: Sequence[BenchPrompt],
    temperatures: Sequence[float],
    *,
    turns: int,
    max_tokens: int,
    seed: int,
    dropped: dict[str, str],
    progress: _ProgressCallback = lambda done, total, what: None,
) -> Iterator[Sample]:
    """Let every arm answer every prompt at every temperature.

    Turns run one after the other, and suites within a turn. All arms answer a prompt in succession,
    and the first one rotates. An arm that fails is added to `dropped`, with the reason. A prompt
    has the same seed in all arms and turns.
    """
    left, done, rotation = list(arms), 0, count()
    suites = by_suite(prompts)
    firsts = [prompts[0] for prompts in suites.values()]

    def ask(
        arm: Arm, prompt: BenchPrompt, temperature: float, what: str, most: int = max_tokens
    ) -> Sample | None:
        # Arms may have been dropped, so the total is computed again.
        answers = len(prompts) * sum(turns if arm.every_turn else 1 for arm in left)
        progress(done, max(done, answers * len(temperatures)), what)
        try:
            return arm.generate(Question(prompt, temperature, seed, most))
        except Exception as error:
            left.remove(arm)
            dropped[arm.name] = str(error) or type(error).__name__
            return None

    # The first pass has additional costs: allocations, page faults and measurements.
    for arm in arms:
        few = min(WARM_UP_TOKENS, max_tokens)
        ask(arm, firsts[0], temperatures[0], f"warming up {arm.name}", few)
    for temperature in temperatures:
        for arm, prompt in product([arm for arm in left if arm.practises], firsts):
            if arm in left:
                ask(arm, prompt, temperature, f"{arm.name} practises {prompt.suite}")
        kind = "greedy" if temperature == 0 else f"T = {temperature:g}"
        for turn, prompt in product(range(turns), [*chain.from_iterable(suites.values())]):
            those = [arm for arm in left if turn == 0 or arm.every_turn]
            first = next(rotation) % max(1, len(those))
            for arm in those[first:] + those[:first]:
                what = f"{kind} · {prompt.suite} · turn {turn + 1} · {arm.name}"
                sample = ask(arm, prompt, temperature, what)
                if sample is not None:
                    done += 1
                    which = replace(sample, arm=arm.name, suite=prompt.suite, prompt=prompt.id)
                    yield replace(which, temperature=temperature, turn=turn)
