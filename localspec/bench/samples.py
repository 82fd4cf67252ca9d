"""Prompts and samples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from localspec.prompting.template import Message


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a suite. `text`: raw text, or what the user says last; `messages`: the chat up
    to there, empty where it is none; `later_turns`: what the user says after each answer."""

    id: str
    suite: str
    text: str
    messages: tuple[Message, ...] = ()
    later_turns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer by one arm; None where the arm does not tell.

    Attributes:
        arm, suite, prompt, temperature, turn: which answer; `run` fills them in.
        tokens: generated after the first.
        seconds: from the first token to the last.
        passes: target passes after the prompt's.
        drafted, tested, accepted: draft tokens.
        draft_seconds, verify_seconds, overhead_seconds: shares of `seconds`.
        token_ids: of the whole answer; empty if unknown.
        calibration_seconds: before the answer; in no other time.
    """

    arm: str = ""
    suite: str = ""
    prompt: str = ""
    temperature: float = 0.0
    turn: int = 0
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
    calibration_seconds: float | None = None

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


class Arm(ABC):
    """A localspec configuration or a peer, its models loaded. `name`: as in the report, e.g. "model
    depth 3", "llama-server draft-simple 3"; `command`: what to type for the same configuration;
    `every_turn`: else it takes part in the first turn alone; `practises`: it first answers each
    suite's first prompt, uncounted, at each temperature."""

    name: str
    command: str
    every_turn: bool = True
    practises: bool = False

    def begin_turn(self) -> None:  # noqa: B027
        """All suites are about to be answered: forget what a first session would not know."""

    @abstractmethod
    def generate(
        self, prompt: BenchPrompt, *, temperature: float, seed: int, max_tokens: int
    ) -> Sample:
        """Answer one prompt, knowing nothing of earlier answers' text."""

    def close(self) -> None:  # noqa: B027
        """Free what it opened; may be repeated."""
