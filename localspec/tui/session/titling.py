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


class Titling:
    """A question for a title, and its answer, for which it `waits`."""

    def __init__(self) -> None:
        self._conversation: Conversation | None = None

    @property
    def waits(self) -> bool:
        return self._conversation is not None

    def question(self, conversation: Conversation) -> Question:
        """The conversation and a wish, so that the cache stays useful for the next message."""
        self._conversation = conversation
        return Question(
            TITLE,
            [*conversation.for_model(), {"role": "user", "content": WISH}],
            commands.checked(temperature=0.0),
            TOKENS,
            "error",
            lambda _text: None,
        )

    def found(self, event: AnswerEnded | AnswerFailed) -> tuple[Conversation | None, str | None]:
        """The conversation that was asked about, and the title, if there is one."""
        conversation, self._conversation = self._conversation, None
        title = title_from(event.text)
        whole = isinstance(event, AnswerEnded) and event.finish_reason == "stop"
        if not whole or title == NEW or title.startswith("<"):
            return conversation, None
        return conversation, title.strip("\"'*. ")
