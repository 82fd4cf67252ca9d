"""What the benchmark passes between its parts: prompts in, samples out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a suite: raw text with its chat markers."""

    id: str
    suite: str
    text: str


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


class Arm(Protocol):
    """One way to generate: a localspec configuration or a peer, its models loaded.

    Attributes:
        name: as in the report, e.g. "planner", "model depth 3", "llama-server draft-simple 3".
        family: "localspec", "llama-server", "llama-cpp-python", "transformers".
        command: what a reader types to get the same configuration.
    """

    name: str
    family: str
    command: str

    def begin_suite(self, suite: str) -> None:
        """A new suite begins: a cold arm forgets what it learned, others do nothing."""
        ...

    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int, turn: int
    ) -> Sample:
        """Answer one prompt from a state that knows nothing of earlier answers' text."""
        ...

    def close(self) -> None:
        """Free models, stop servers."""
        ...
