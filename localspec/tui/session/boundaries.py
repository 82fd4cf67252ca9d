"""What `Conversing` talks to: the screen, the history and the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from localspec.chat.conversation import Conversation, Message
from localspec.tui.session.events import Question


class View(Protocol):
    """The screen, told what to show. All of it is called in the screen's thread."""

    def show_conversation(self) -> None:
        """Another conversation or branch is shown, or one message more."""
        ...

    def message_changed(self, message: Message) -> None:
        """One message, or its note, is different."""
        ...

    def working(self, doing: str | None) -> None:
        """Something takes its time, in words; None when it is over."""
        ...

    def answering(self, begins: bool) -> None:
        """An answer begins, or is over."""
        ...

    def overflowed(self, error: str) -> None:
        """The conversation does not fit the context."""
        ...

    def tell(self, text: str, *, error: bool = False) -> None:
        """A sentence for the user."""
        ...


class ConversationStore(Protocol):
    """Who writes the history; see `localspec.history.writer.HistoryWriter`."""

    def sent(self, conversation: Conversation, message: Message) -> Future[bool]: ...

    def streaming(self, conversation: str, message: Message) -> None: ...

    def done(self, conversation: Conversation, message: Message) -> Future[bool]: ...

    def saved(self, conversation: Conversation) -> Future[bool]: ...


class AnsweringEngine(Protocol):
    """Who answers; see `localspec.tui.session.background_engine.BackgroundEngine`."""

    def ask(self, question: Question) -> None: ...

    def stop(self) -> None: ...

    def learn(self, conversation: str, texts: Sequence[str]) -> None:
        """Learn what was said in a conversation."""
        ...

    def forget(self, conversation: str) -> None:
        """A conversation is deleted: learn and record nothing of it any more."""
        ...
