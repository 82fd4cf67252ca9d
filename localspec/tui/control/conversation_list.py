"""The list of conversations, filled from the history by threads that may wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from localspec.chat.conversation import Conversation
from localspec.errors import LocalspecError
from localspec.history.writer import HistoryWriter
from localspec.tui.control.screen_parts import ScreenParts
from localspec.tui.session.conversing import Conversing

if TYPE_CHECKING:
    from localspec.history.history import ConversationSummary, SearchHit


PAGE = 100
"""Conversations that are listed at a time."""


class ListHost(Protocol):
    """What the list wants of the app."""

    conversing: Conversing

    @property
    def is_running(self) -> bool: ...

    def show(
        self, conversation: Conversation, message: str | None = None, *, uncover: bool = True
    ) -> None: ...

    def tell(self, text: str, *, error: bool) -> None: ...

    def run_worker(
        self, work: Callable[[], None], *, group: str, exclusive: bool, thread: bool
    ) -> object: ...

    def call_from_thread(self, callback: Callable[[], object]) -> object: ...


class ConversationList:
    """Asks the history, and shows what it answers."""

    def __init__(self, host: ListHost, parts: ScreenParts, store: HistoryWriter) -> None:
        self._host = host
        self._parts = parts
        self._store = store
        self._wanted = 0

    def open(self, kept: Conversation | None = None) -> None:
        """Open the history; what it holds is listed then.

        Args:
            kept: a conversation from elsewhere that is shown: the history's own takes its place,
                or it is taken into the history.
        """
        self._in_thread("open", partial(self._open, kept))

    def list(self, offset: int = 0) -> None:
        """Show the conversations anew, or further ones."""

        def ask() -> None:
            self._store.flush(timeout=1.0)  # what was written just now is listed, too
            found = self._store.history.list(limit=PAGE, offset=offset)
            self._back(partial(self._list, found, offset))

        self._in_thread("list", ask)

    def search(self, query: str) -> None:
        """Show what a search finds."""
        if not query:
            self.list()
            return

        def ask() -> None:
            self._back(partial(self._found, query, self._store.history.search(query, limit=PAGE)))

        self._in_thread("list", ask)

    def take(self, conversation: str, message: str | None) -> None:
        """Show a conversation, and in it this message; the last one that was asked for."""
        self._wanted += 1
        wanted = self._wanted

        def show(found: Conversation) -> None:
            # A thread cannot be cancelled: what an earlier key asked for may come late.
            if wanted == self._wanted:
                # Whoever went elsewhere meanwhile is typing there. What had the focus when this was
                # asked for is of no use: a key may go elsewhere before the list's message is here.
                self._host.show(found, message, uncover=self._parts.sidebar.choosing)

        def ask() -> None:
            try:
                found = self._store.history.load(conversation)
            except LocalspecError as error:
                self._back(partial(self._host.tell, str(error), error=True))
            else:
                self._back(partial(show, found))

        self._in_thread("take", ask)

    def _open(self, kept: Conversation | None) -> None:
        if kept is not None:
            self._find(kept)
        self._back(
            partial(self._parts.prompt.remember, self._store.history.recent_prompts(limit=PAGE))
        )
        self._back(self.list)

    def _find(self, kept: Conversation) -> None:
        try:
            found = self._store.history.load(kept.id)
        except LocalspecError:
            for message in kept.path():
                self._store.sent(kept, message)
            return
        if kept.tip in found.messages:
            found.tip = kept.tip
            self._back(partial(self._replace, kept, found))

    def _replace(self, kept: Conversation, found: Conversation) -> None:
        """Show what the history knows of it, unless something was done already."""
        conversing = self._host.conversing
        if conversing.conversation is kept and conversing.running is None:
            self._host.show(found)

    def _list(self, found: Sequence[ConversationSummary], offset: int) -> None:
        sidebar = self._parts.sidebar
        if not sidebar.searching:
            sidebar.current(self._host.conversing.conversation.id)
            sidebar.list(found, more=offset > 0)

    def _found(self, query: str, hits: Sequence[SearchHit]) -> None:
        if self._parts.sidebar.searching == query:
            self._parts.sidebar.found(hits)

    def _in_thread(self, group: str, work: Callable[[], None]) -> None:
        self._host.run_worker(work, thread=True, group=group, exclusive=True)

    def _back(self, action: Callable[[], object]) -> None:
        """In the screen's thread, unless that is over."""
        if self._host.is_running:
            self._host.call_from_thread(action)
