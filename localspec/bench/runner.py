"""Run all arms over all prompts, interleaved, so that drifts of the machine's speed cancel out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, product

from localspec.bench.samples import Arm, BenchPrompt, Question, Sample
from localspec.bench.suites import by_suite

_ProgressCallback = Callable[[int, int, str], None]
"""Called before each answer with the numbers of answers done and in all, and a description."""

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class _Turn:
    """The next answer of an arm. `turn`: None if it is not counted; `begins`: whether it is the
    first of the arm's turn; `most`: maximum tokens; None: as many as requested."""

    arm: Arm
    prompt: BenchPrompt
    temperature: float
    what: str
    turn: int | None = None
    begins: bool = False
    most: int | None = None


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
    left, done = list(arms), 0
    for asked in _turns(left, by_suite(prompts), temperatures, turns):
        arm, prompt, temperature = asked.arm, asked.prompt, asked.temperature
        if arm not in left:
            continue
        # Arms may have been dropped, so the total is computed again.
        answers = len(prompts) * sum(turns if arm.every_turn else 1 for arm in left)
        progress(done, max(done, answers * len(temperatures)), asked.what)
        most = min(asked.most or max_tokens, max_tokens)
        try:
            if asked.begins:
                arm.begin_turn()
            sample = arm.generate(Question(prompt, temperature, seed, most))
        except Exception as error:
            left.remove(arm)
            dropped[arm.name] = str(error) or type(error).__name__
            continue
        if asked.turn is not None:
            done += 1
            which = replace(sample, arm=arm.name, suite=prompt.suite, prompt=prompt.id)
            yield replace(which, temperature=temperature, turn=asked.turn)


def _turns(
    left: Sequence[Arm],
    suites: Mapping[str, Sequence[BenchPrompt]],
    temperatures: Sequence[float],
    turns: int,
) -> Iterator[_Turn]:
    """All answers in order. `left`: the arms; failed ones are removed meanwhile."""
    firsts, rotation = [prompts[0] for prompts in suites.values()], count()
    # The first pass has additional costs: allocations, page faults and measurements.
    for arm in list(left) if firsts and temperatures else ():
        what = f"warming up {arm.name}"
        yield _Turn(arm, firsts[0], temperatures[0], what, most=WARM_UP_TOKENS)
    for temperature in temperatures:
        for arm, prompt in product([arm for arm in left if arm.practises], firsts):
            yield _Turn(arm, prompt, temperature, f"{arm.name} practises {prompt.suite}")
        kind = "greedy" if temperature == 0 else f"T = {temperature:g}"
        for turn in range(turns):
            for number, prompt in enumerate(chain.from_iterable(suites.values())):
                arms = [arm for arm in left if turn == 0 or arm.every_turn]
                first = next(rotation) % max(1, len(arms))
                for arm in arms[first:] + arms[:first]:
                    what = f"{kind} · {prompt.suite} · turn {turn + 1} · {arm.name}"
                    yield _Turn(arm, prompt, temperature, what, turn, begins=number == 0)
