"""A running answer, and the message that it becomes."""

from __future__ import annotations

from dataclasses import dataclass

from localspec.chat.conversation import Conversation, Message
from localspec.chat.figures import Figures
from localspec.tui.session.answer import ShownAnswer


@dataclass(slots=True)
class Running:
    """An answer that is wanted, or in progress.

    Attributes:
        conversation, to: where it belongs, and the id of the message that it answers.
        message, answer: once it has begun.
        asked: whether the engine's thread knows of it.
    """

    conversation: Conversation
    to: str
    message: Message | None = None
    answer: ShownAnswer | None = None
    asked: bool = False

    def take(self, *, spans: bool) -> bool:
        """Take in the progress, with sources for `spans`; whether there was any."""
        if self.answer is None or self.message is None or not self.answer.take():
            return False
        self.message.content = self.answer.text
        if spans:
            self.message.spans = self.answer.spans()
        return True

    def finish(self, state: str, text: str | None = None) -> Figures | None:
        """Complete the message; returns its figures, None where it never began."""
        if self.answer is None or self.message is None:
            return None
        self.answer.take()
        self.message.content = self.answer.text if text is None else text
        self.message.state = state
        self.message.spans = self.answer.spans()
        figures = self.answer.figures()
        self.message.stats = figures.as_dict()
        return figures
