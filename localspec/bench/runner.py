"""Runs all arms over all prompts, interleaved, so that a drifting machine favours none of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localspec.bench.samples import Arm, BenchPrompt, Sample

ProgressCallback = Callable[[int, int, str], None]
"""Called before each answer with answers done, answers to do, and what runs, in words."""

WARM_UP_TOKENS = 8


@dataclass(slots=True)
class RunOutcome:
    """What a run brought.

    Attributes:
        samples: in the order they were taken.
        dropped: arms that failed, and why; their earlier samples are among `samples`.
        partial: the run was interrupted.
    """

    samples: list[Sample] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    partial: bool = False


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
    """Let every arm answer every prompt at every temperature.

    Turn by turn, and in a turn suite by suite, whatever the order of `prompts`: as long as somebody
    stays with a topic. All arms answer a prompt one after the other, and who is first rotates from
    prompt to prompt.

    Args:
        turns: how often everything is repeated.
        seed: of the sampling; a prompt has the same one in all arms and turns.
        turns_of: repetitions of an arm, at most `turns`; None repeats all of them alike.
        practises: whether an arm answers the first prompt of each suite once before its first turn
            at each temperature, uncounted: one that is to know the texts already. None for nobody.

    Returns:
        What there is, also after Ctrl+C or where arms failed.
    """
    one = _Run(arms, prompts, turns, max_tokens, seed, progress, turns_of, practises)
    return one.all(temperatures)


class _Run:
    """The state of one run."""

    def __init__(
        self,
        arms: Sequence[Arm],
        prompts: Sequence[BenchPrompt],
        turns: int,
        max_tokens: int,
        seed: int,
        progress: ProgressCallback | None,
        turns_of: Callable[[Arm], int] | None,
        practises: Callable[[Arm], bool] | None,
    ) -> None:
        self._arms = list(arms)
        self._suites: dict[str, list[BenchPrompt]] = {}
        for prompt in prompts:
            self._suites.setdefault(prompt.suite, []).append(prompt)
        self._turns = {arm.name: min(turns, turns_of(arm)) if turns_of else turns for arm in arms}
        self._most_turns = turns
        self._practises = practises
        self._max_tokens = max_tokens
        self._seed = seed
        self._progress = progress
        self._outcome = RunOutcome()
        self._first = 0
        self._done = 0
        self._temperatures = 0

    def all(self, temperatures: Sequence[float]) -> RunOutcome:
        self._temperatures = len(temperatures)
        try:
            if self._suites and temperatures:
                self._warm_up(temperatures[0])
            for temperature in temperatures:
                self._practise(temperature)
                for turn in range(self._most_turns):
                    self._turn(temperature, turn)
        except KeyboardInterrupt:
            self._outcome.partial = True
        return self._outcome

    def _warm_up(self, temperature: float) -> None:
        """A first pass pays for allocations, page faults and measurements that no later one has."""
        prompt = next(iter(self._suites.values()))[0]
        most = min(WARM_UP_TOKENS, self._max_tokens)
        for arm in list(self._arms):
            self._tell(f"warming up {arm.name}")
            self._sample(arm, prompt, temperature, 0, most)

    def _practise(self, temperature: float) -> None:
        for arm in [arm for arm in self._arms if self._practises and self._practises(arm)]:
            for suite, prompts in self._suites.items():
                self._tell(f"{arm.name} gets to know {suite}")
                if self._sample(arm, prompts[0], temperature, 0, self._max_tokens) is None:
                    break

    def _turn(self, temperature: float, turn: int) -> None:
        for arm in self._taking_part(turn):
            self._begin(arm)
        for suite, prompts in self._suites.items():
            self._suite(suite, prompts, temperature, turn)

    def _suite(
        self, suite: str, prompts: Sequence[BenchPrompt], temperature: float, turn: int
    ) -> None:
        for prompt in prompts:
            arms = self._taking_part(turn)
            if not arms:
                return
            first = self._first % len(arms)
            self._first += 1
            for arm in [*arms[first:], *arms[:first]]:
                kind = "greedy" if temperature == 0 else f"T = {temperature:g}"
                self._tell(f"{kind} · {suite} · turn {turn + 1} · {arm.name}")
                sample = self._sample(arm, prompt, temperature, turn, self._max_tokens)
                if sample is not None:
                    self._outcome.samples.append(sample)
                    self._done += 1

    def _begin(self, arm: Arm) -> None:
        try:
            arm.begin_turn()
        except Exception as error:
            self._drop(arm, error)

    def _sample(
        self, arm: Arm, prompt: BenchPrompt, temperature: float, turn: int, most: int
    ) -> Sample | None:
        """One answer; None from an arm that fails and is dropped."""
        try:
            return arm.generate(
                prompt, temperature=temperature, seed=self._seed, max_tokens=most, turn=turn
            )
        except Exception as error:
            self._drop(arm, error)
            return None

    def _taking_part(self, turn: int) -> list[Arm]:
        return [arm for arm in self._arms if turn < self._turns[arm.name]]

    def _drop(self, arm: Arm, error: Exception) -> None:
        """Go on without an arm; what it would do next is not worth the others' time."""
        self._arms.remove(arm)
        self._outcome.dropped[arm.name] = str(error) or type(error).__name__

    def _tell(self, what: str) -> None:
        if self._progress is None:
            return
        # Arms may have been dropped, so what is left is counted afresh.
        prompts = sum(map(len, self._suites.values()))
        whole = prompts * sum(self._turns[arm.name] for arm in self._arms)
        self._progress(self._done, max(self._done, whole * self._temperatures), what)
