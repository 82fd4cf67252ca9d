"""What the benchmark passes between its parts: prompts in, samples out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from localspec.prompting.template import Message


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a suite.

    Attributes:
        text: raw text with its chat markers.
        messages: the same as chat messages, for a model with other markers; empty where it is no
            chat. See `localspec.bench.prompt_texts.rendered`.
        later_turns: what the user goes on to say, after an answer each.
    """

    id: str
    suite: str
    text: str
    messages: tuple[Message, ...] = ()
    later_turns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What a planner expected of the steps in which it tried a draft, and what came of them.

    A step whose draft was not found worth verifying is one of them: it cost something.

    Attributes:
        steps: how many.
        tokens, real_tokens: expected of them, and committed by them.
        seconds, real_seconds: expected at the pace of the moment, and taken.
        plain_seconds: T(1), as the planner had it, summed over the steps.
    """

    steps: int
    tokens: float
    real_tokens: int
    seconds: float
    real_seconds: float
    plain_seconds: float


@dataclass(frozen=True, slots=True)
class DraftAccount:
    """What drafting did to the time of an answer, in seconds.

    Attributes:
        saved: against plain decoding, by the steps that were faster.
        risked: staked on drafts beyond what plain decoding would have taken.
    """

    saved: float
    risked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer by one arm.

    Attributes:
        arm, suite, prompt, temperature, turn: what ran.
        tokens: generated tokens after the first.
        seconds: from the first token to the last; the prompt's time is not in it.
        passes: target passes after the prompt's; None where the arm does not tell.
        drafted, tested, accepted: draft tokens; None where the arm does not tell (a peer that
            tells drafted and accepted only leaves `tested` None).
        draft_seconds, verify_seconds, overhead_seconds: shares of `seconds`, None if unknown.
        text: the answer.
        token_ids: the answer's tokens, empty where the arm does not tell.
        predictions: (predicted chance, accepted) of each tested draft token; empty without them.
        expected_tokens: tokens that the planner expected, one for each step without a draft; None
            without it.
        foreseen: of the steps with drafts; None where nobody expected anything of them.
        calibration_seconds: spent before the answer on measuring what passes cost; in no other
            time. None where the arm does not tell.
        account: what drafting saved and risked; None where the arm does not tell.
    """

    arm: str
    suite: str
    prompt: str
    temperature: float
    turn: int
    tokens: int
    seconds: float
    passes: int | None = None
    drafted: int | None = None
    tested: int | None = None
    accepted: int | None = None
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    overhead_seconds: float | None = None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    predictions: tuple[tuple[float, bool], ...] = field(default=(), repr=False)
    expected_tokens: float | None = None
    foreseen: Foreseen | None = None
    calibration_seconds: float | None = None
    account: DraftAccount | None = None


class Arm(Protocol):
    """One way to generate: a localspec configuration or a peer, its models loaded.

    Attributes:
        name: as in the report, e.g. "planner", "model depth 3", "llama-server draft-simple 3".
        family: "localspec", "llama-server", "llama-cpp-python", "transformers",
            "ik_llama-cpp-python".
        command: what a reader types to get the same configuration.
    """

    name: str
    family: str
    command: str

    def begin_turn(self) -> None:
        """All suites are about to be answered (once more): what is to begin this without
        knowledge forgets, others do nothing."""
        ...

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt from a state that knows nothing of earlier answers' text."""
        ...

    def close(self) -> None:
        """Free models, stop servers."""
        ...
