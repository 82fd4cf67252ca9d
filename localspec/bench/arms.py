"""localspec's own configurations as arms of the benchmark."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from localspec.bench.samples import BenchPrompt, DraftAccount, Foreseen, Sample
from localspec.decoding.interfaces import Step
from localspec.decoding.params import SamplingParams
from localspec.decoding.stats import GenerationStats
from localspec.drafters.options import Drafting
from localspec.drafters.registry import REGISTRY
from localspec.errors import Cancelled, UsageError

if TYPE_CHECKING:
    from localspec.engine import Engine

PLAIN = "plain"
PLANNER = "planner"
FIRST = "planner, first session"
COLD = "planner, cold"
SWEEP = "model depth "
"""What the names of the fixed depths begin with."""
DEPTHS = range(1, 9)

GROUPS = ("plain", "planner", "first", "cold", "drafters", "depths", "trees")
"""What `localspec_arms` can be asked for."""


class Memory(Enum):
    """What an arm knows when it answers."""

    KEEPS = "what it learned before, in this run and in earlier sessions"
    BEGINS = "nothing when a turn begins; it learns through the turn, as in a first session"
    FORGETS = "nothing, as the first answer on a new machine"


KNOWLEDGE = {
    PLANNER: "had answered a prompt of each suite before, and learned on.",
    FIRST: "knew nothing when a turn began, and learned through its suites.",
    COLD: "starts each answer without any measurements.",
}
"""What the report says of the planner's arms."""


class LocalspecArm:
    """One way to draft. Several arms share an engine: it begins every prompt anew.

    Args:
        engine: the open pair; whoever opened it closes it.
        name: as in the report.
        drafting: the configuration.
        memory: what it knows of earlier answers. One that forgets needs an engine of its own: it
            would be taught by others, and make them forget.
    """

    family = "localspec"

    def __init__(
        self,
        engine: Engine,
        name: str,
        drafting: Drafting,
        *,
        memory: Memory = Memory.KEEPS,
    ) -> None:
        self.name = name
        self.command = _command(engine, drafting)
        self._engine = engine
        self._drafting = drafting
        self._memory = memory

    def begin_turn(self) -> None:
        """Drop what was learned, if a first session begins."""
        if self._memory is Memory.BEGINS:
            self._engine.forget()

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt.

        Raises:
            Cancelled: the engine was closed meanwhile.
            LocalspecError: as `Engine.stream`.
        """
        if self._memory is Memory.FORGETS:
            self._engine.forget()
        sampling = SamplingParams(temperature=temperature, seed=seed)
        stream = self._engine.stream(
            prompt.text, max_tokens=max_tokens, sampling=sampling, drafting=self._drafting
        )
        steps: list[Step] = []
        tokens: list[int] = []
        foreseen: list[Foreseen] = []
        with stream:
            for chunk in stream:
                tokens += chunk.token_ids
                if chunk.step is not None:
                    steps.append(chunk.step)
                    foreseen += self._foreseen(chunk.step)
        if stream.finish_reason == "cancelled":
            raise Cancelled("The answer was stopped on request.")
        return _sample(
            self.name,
            prompt,
            temperature,
            turn,
            stream.stats,
            steps[1:],
            tokens,
            stream.text,
            _added(foreseen),
        )

    def _foreseen(self, step: Step) -> list[Foreseen]:
        """What was expected of a step in which a draft was tried, verified or not."""
        expected = step.draft.expectation
        if expected is None or not (step.drafted or step.draft_seconds):
            return []
        # The policy reckons at the pace of its table: what is common to all passes cancels out.
        pace = self._engine.profile.target.pace
        return [
            Foreseen(
                steps=1,
                tokens=expected.tokens,
                real_tokens=len(step.tokens),
                seconds=expected.seconds * pace,
                real_seconds=step.seconds,
                plain_seconds=expected.plain * pace,
            )
        ]

    def close(self) -> None:
        """Nothing: the engine belongs to whoever opened it."""


def localspec_arms(
    engine: Engine, which: Sequence[str], *, another: Callable[[], Engine] | None = None
) -> list[LocalspecArm]:
    """The arms of the named groups, in the order of the report.

    Args:
        engine: the open pair. What needs a draft model is left out where there is none.
        which: names in GROUPS.
        another: opens the pair once more, for each arm that forgets; None uses `engine`, where it
            makes the other planners forget as well.

    Raises:
        UsageError: a group that does not exist.
    """
    for group in which:
        if group not in GROUPS:
            raise UsageError(f"There are no arms '{group}'. Choose from {', '.join(GROUPS)}.")
    has_model = engine.draft is not None and not engine.head_source
    arms: list[LocalspecArm] = []

    def add(name: str, drafting: Drafting) -> None:
        arms.append(LocalspecArm(engine, name, drafting))

    if "plain" in which:
        add(PLAIN, Drafting(drafter="none"))
    if "planner" in which:
        add(PLANNER, Drafting())
    for group, name, memory in (
        ("first", FIRST, Memory.BEGINS),
        ("cold", COLD, Memory.FORGETS),
    ):
        if group in which:
            own = engine if another is None else another()
            arms.append(LocalspecArm(own, name, Drafting(), memory=memory))
    if "drafters" in which:
        for name, registered in REGISTRY.items():
            if name == "grammar":
                continue  # no prompt of the benchmark has one
            if registered.needs_datastore and not engine.learned:
                continue
            if registered.needs_head and registered.needs_head != engine.head_source:
                continue
            if has_model or not registered.needs_model:
                add(name, Drafting(drafter=name))
    if "depths" in which and has_model:
        for depth in DEPTHS:
            add(f"{SWEEP}{depth}", Drafting(drafter="model", depth=depth))
    if "trees" in which and has_model:
        add(f"{SWEEP}3 width 2", Drafting(drafter="model", depth=3, width=2))
        # Accepted by matching the target's sample: what other engines do.
        add("arg-max depth 3", Drafting(drafter="model", depth=3, sampled=False))
    return arms


def sweep_depth(name: str) -> int | None:
    """The depth of an arm of the sweep, None for any other arm."""
    rest = name.removeprefix(SWEEP)
    return int(rest) if rest != name and rest.isdecimal() else None


def _sample(
    arm: str,
    prompt: BenchPrompt,
    temperature: float,
    turn: int,
    stats: GenerationStats,
    steps: Sequence[Step],
    tokens: Sequence[int],
    text: str,
    foreseen: Foreseen | None,
) -> Sample:
    """The figures of an answer. `steps` are those after the prompt's own."""
    predictions, expected = _predictions(steps)
    return Sample(
        arm=arm,
        suite=prompt.suite,
        prompt=prompt.id,
        temperature=temperature,
        turn=turn,
        tokens=max(stats.generated_tokens - 1, 0),
        seconds=stats.decode_seconds,
        passes=len(steps),
        drafted=stats.drafted,
        tested=stats.tested,
        accepted=stats.accepted,
        draft_seconds=stats.draft_seconds,
        verify_seconds=stats.verify_seconds,
        overhead_seconds=stats.overhead_seconds,
        text=text,
        token_ids=tuple(tokens),
        predictions=predictions,
        expected_tokens=expected,
        foreseen=foreseen,
        calibration_seconds=stats.calibration_seconds,
        account=_account(stats),
    )


def _account(stats: GenerationStats) -> DraftAccount | None:
    """What drafting saved where it was faster, and lost where it was not."""
    statement = stats.account
    if statement is None:
        return None
    return DraftAccount(saved=statement.saved + statement.risked, risked=statement.risked)


def _added(parts: Sequence[Foreseen]) -> Foreseen | None:
    if not parts:
        return None
    return Foreseen(
        steps=len(parts),
        tokens=sum(part.tokens for part in parts),
        real_tokens=sum(part.real_tokens for part in parts),
        seconds=sum(part.seconds for part in parts),
        real_seconds=sum(part.real_seconds for part in parts),
        plain_seconds=sum(part.plain_seconds for part in parts),
    )


def _predictions(steps: Sequence[Step]) -> tuple[tuple[tuple[float, bool], ...], float | None]:
    """What a planner that estimates foresaw: a chance for each tested token, and tokens in all.

    A step without a draft brings exactly one token; it is counted as that, so that the sum compares
    with the tokens of the whole answer.
    """
    predictions: list[tuple[float, bool]] = []
    expected, estimated = 0.0, False
    for step in steps:
        foreseen = step.draft.expectation
        if foreseen is not None:
            kept = set(step.path)
            predictions += [(foreseen.chances[n], n in kept) for n in step.tested_nodes]
        if step.drafted and foreseen is not None:
            expected += foreseen.tokens
            estimated = True
        elif step.drafted:
            return tuple(predictions), None  # a forced draft: nobody expected anything
        else:
            expected += 1.0
    return tuple(predictions), expected if estimated else None


def _command(engine: Engine, drafting: Drafting) -> str:
    """What to type for one answer in this configuration."""
    words = ["localspec", "run", "--raw", "-m", str(engine.model.path)]
    words += ["-d", "none" if engine.draft is None else str(engine.draft_path)]
    words += ["--drafter", drafting.drafter]
    if drafting.depth is not None:
        words += ["--depth", str(drafting.depth)]
    if drafting.width != 1:
        words += ["--width", str(drafting.width)]
    if not drafting.sampled:
        words += ["--greedy-drafts"]
    return shlex.join(words)
