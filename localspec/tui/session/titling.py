"""Having the model name a conversation."""

from __future__ import annotations

from localspec.chat.conversation import Conversation
from localspec.chat.titles import NEW, title_from
from localspec.tui.session import commands
from localspec.tui.session.events import AnswerEnded, AnswerFailed, Question

TITLE = "title"
"""What events carry that are about a title; no message has such an id."""
WISH = (
    "Give our conversation a title of at most six words. Answer with the title alone, "
    "without quotation marks."
)
TOKENS = 24


def question(conversation: Conversation) -> Question:
    """What to ask the model.

    It reads on where it is, so that the cache stays what the next message needs.
    """
    return Question(
        TITLE,
        [*conversation.for_model(), {"role": "user", "content": WISH}],
        commands.checked(temperature=0.0),
        TOKENS,
        "error",
        lambda _text: None,
    )


def title(event: AnswerEnded | AnswerFailed) -> str | None:
    """The title that it found, None if it found none."""
    found = title_from(event.text)
    whole = isinstance(event, AnswerEnded) and event.finish_reason == "stop"
    if not whole or found == NEW or found.startswith("<"):
        return None
    return found.strip("\"'*. ")
