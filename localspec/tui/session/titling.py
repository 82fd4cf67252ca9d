"""Having the model name a conversation."""

from __future__ import annotations

from localspec.chat.conversation import Conversation
from localspec.chat.titles import NEW, title_from
from localspec.tui.session import commands
from localspec.tui.session.events import AnswerEnded, AnswerFailed, Question

TITLE = "title"
"""Id in events about a title; no message has it."""
WISH = (
    "Give our conversation a title of at most six words. Answer with the title alone, "
    "without quotation marks."
)
TOKENS = 24


def question(conversation: Conversation) -> Question:
    """The conversation and a wish, so that the cache stays useful for the next message."""
    messages = [*conversation.for_model(), {"role": "user", "content": WISH}]
    greedy = commands.checked(temperature=0.0)
    return Question(TITLE, messages, greedy, TOKENS, "error", lambda _text: None)


def title_of(event: AnswerEnded | AnswerFailed) -> str | None:
    """The title in an answer; None where there is none."""
    title = title_from(event.text)
    whole = isinstance(event, AnswerEnded) and event.finish_reason == "stop"
    return title.strip("\"'*. ") if whole and title != NEW and not title.startswith("<") else None
