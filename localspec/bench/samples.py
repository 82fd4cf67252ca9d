"""Prompts and samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localspec.prompting.template import Message


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """One prompt of a suite. `text`: raw text, or the user's last message; `messages`: the chat up
    to it, empty for raw text; `later_turns`: the user's later messages."""

    id: str
    suite: str
    text: str
    messages: tuple[Message, ...] = ()
    later_turns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to answer, with at most `max_tokens` tokens."""

    prompt: BenchPrompt
    temperature: float
    seed: int
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSetup:
    """The models that another program opens, and how. `tokenize`, `piece`: raw text to token ids
    with BOS, and an id back to bytes; `context`: tokens; `gpu_layers`: -1 for the default."""

    target: Path
    draft: Path | None = None
    tokenize: Callable[[str], list[int]]
    piece: Callable[[int], bytes]
    threads: int
    context: int
    gpu_layers: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer by one arm; None if the arm does not report a value.

    Attributes:
        arm, suite, prompt, temperature, turn: identify the answer; set by `run`.
        tokens: generated after the first.
        seconds: from the first token to the last.
        passes: target passes after the prompt's.
        drafted, tested, accepted: draft tokens.
        token_ids: of the whole answer; empty if unknown.
        calibration_seconds: before the answer, not included in other times.
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
    text: str = ""
    token_ids: tuple[int, ...] = ()
    calibration_seconds: float | None = None

    @property
    def pace(self) -> float:
        """Seconds per token."""
        return self.seconds / self.tokens


class Arm(ABC):
    """A localspec configuration or a peer, with loaded models. `name`: in the report, e.g. "model
    depth 3", "llama-server draft-simple 3"; `command`: the command of the same configuration;
    `every_turn`: false for arms that take part only in the first turn; `practises`: it first
    answers each suite's first prompt, uncounted, at each temperature."""

    name: str
    command: str
    every_turn: bool = True
    practises: bool = False

    @abstractmethod
    def generate(self, question: Question) -> Sample:
        """Answer one prompt, without reusing the text of earlier answers. Raises LocalspecError."""

    def close(self) -> None:  # noqa: B027
        """Free its resources; may be repeated."""
