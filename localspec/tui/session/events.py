"""Questions to the engine's thread, and its events."""

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
    """References as for `localspec.load`."""

    model: str | None
    draft: str | None = "auto"


@dataclass(frozen=True, slots=True)
class Question:
    """An answer that is wanted. `message`: id of the message to answer; the events carry it;
    `messages`, `sampling`, `max_tokens`, `overflow`: as for `Engine.stream`; `keep`: called in the
    engine's thread with the text so far, now and then; `record_of`: id of the conversation to
    record it under; None: do not record."""

    message: str
    messages: Sequence[Message]
    sampling: SamplingParams
    max_tokens: int | None
    overflow: str
    keep: Callable[[str], None]
    record_of: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A pair is open."""

    pair: PairReference
    model: str
    model_path: str
    draft: str | None
    context_length: int
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """What is being done, in words; `message` is the id of the one to answer, None for opening."""

    text: str
    message: str | None = None


@dataclass(frozen=True, slots=True)
class NotOpened:
    """`still` is the pair that is open instead; `cancelled` by the user."""

    pair: PairReference
    error: str
    cancelled: bool
    still: Opened | None


@dataclass(frozen=True, slots=True)
class AnswerBegan:
    message: str
    answer: ShownAnswer


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    """Complete, or stopped."""

    message: str
    text: str
    finish_reason: str


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """There is no complete answer. `overflow`: the conversation does not fit the context."""

    message: str
    text: str
    error: str
    overflow: bool


@dataclass(frozen=True, slots=True)
class NotKept:
    """A conversation was not learned, or an answer not recorded."""

    error: str


Event = Opened | NotOpened | Progress | AnswerBegan | AnswerEnded | AnswerFailed | NotKept
