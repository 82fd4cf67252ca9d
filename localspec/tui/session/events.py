"""What the screen asks of the engine's thread, and what the thread tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localspec.tui.session.answer import ShownAnswer

if TYPE_CHECKING:
    # The engine and its company import numpy, and the screen is painted before that.
    from localspec import SamplingParams
    from localspec.prompting.template import Message


@dataclass(frozen=True, slots=True)
class PairReference:
    """What to open: references as for `localspec.load`."""

    model: str | None
    draft: str | None = "auto"


@dataclass(frozen=True, slots=True)
class Question:
    """An answer that is wanted.

    Attributes:
        message: id of the message that is answered; the events carry it.
        messages, sampling, max_tokens, overflow: as for `Engine.stream`.
        keep: called in the engine's thread with the text so far, every now and then.
        record_of: id of the conversation to record it under; None where it is not to be.
    """

    message: str
    messages: Sequence[Message]
    sampling: SamplingParams
    max_tokens: int | None
    overflow: str
    keep: Callable[[str], None]
    record_of: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A pair is open: what was asked for, the models' names and files, tokens of context, and what
    the user should know."""

    pair: PairReference
    model: str
    model_path: str
    draft: str | None
    draft_path: str | None
    why_no_draft: str | None
    context_length: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OpeningProgress:
    """Something about opening takes its time; `fraction` is 0 to 1, None where unknown."""

    what: str
    fraction: float | None


@dataclass(frozen=True, slots=True)
class NotOpened:
    """A pair could not be opened; `cancelled` if the user wanted it so. `still` is the pair that is
    open instead."""

    pair: PairReference
    error: str
    cancelled: bool
    still: Opened | None


@dataclass(frozen=True, slots=True)
class Measuring:
    """What passes cost here is being measured, before the first answer of a new pair."""

    message: str


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """The prompt is being read: tokens done and to do."""

    message: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class AnswerBegan:
    """An answer begins; look into `answer` for what comes."""

    answer: ShownAnswer


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """An answer is complete, or was stopped."""

    message: str
    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """There is no (complete) answer."""

    message: str
    text: str
    error: str


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The conversation does not fit the context."""

    message: str
    error: str


@dataclass(frozen=True, slots=True)
class NotKept:
    """A conversation was to be learned, or an answer to be recorded, and was not."""

    error: str


Event = (
    Opened
    | OpeningProgress
    | NotOpened
    | Measuring
    | PromptProgress
    | AnswerBegan
    | AnswerEnded
    | AnswerFailed
    | Overflowed
    | NotKept
)


def event_id(event: Event) -> str | None:
    if isinstance(event, AnswerBegan):
        return event.answer.message
    return getattr(event, "message", None)
