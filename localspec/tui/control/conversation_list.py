"""The list of conversations, filled from the history by threads that may wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.history.history import Hit, Summary
    from localspec.tui.app import ChatApp


class ConversationList:
    """Asks the history, and shows what it answers."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    def open(self) -> None:
        """Open the history; what it holds is listed then."""
        self._in_thread("open", self._open)

    def list(self, offset: int = 0) -> None:
        """Show the conversations anew, or further ones."""

        def ask() -> None:
            self._back(partial(self._list, self._app.history.list(offset), offset))

        self._in_thread("list", ask)

    def search(self, query: str) -> None:
        """Show what a search finds."""
        if not query:
            self.list()
            return

        def ask() -> None:
            self._back(partial(self._found, query, self._app.history.search(query)))

        self._in_thread("list", ask)

    def take(self, conversation: str, message: str | None) -> None:
        """Show a conversation, and in it this message."""

        def ask() -> None:
            try:
                found = self._app.history.load(conversation)
            except LocalspecError as error:
                self._back(partial(self._app.conversation_display.tell, str(error), error=True))
            else:
                self._back(partial(self._app.show, found, message))

        self._in_thread("take", ask)

    def _open(self) -> None:
        self._app.history.open()
        self._back(partial(self._app.prompt.remember, self._app.history.sent_before()))
        self._back(self.list)

    def _list(self, found: Sequence[Summary], offset: int) -> None:
        sidebar = self._app.sidebar
        if not sidebar.searching:
            sidebar.current(self._app.conversing.conversation.id)
            sidebar.list(found, more=offset > 0)

    def _found(self, query: str, hits: Sequence[Hit]) -> None:
        if self._app.sidebar.searching == query:
            self._app.sidebar.found(hits)

    def _in_thread(self, group: str, work: Callable[[], None]) -> None:
        self._app.run_worker(work, thread=True, group=group, exclusive=True)

    def _back(self, action: Callable[[], object]) -> None:
        """In the screen's thread, unless that is over."""
        if self._app.is_running:
            self._app.call_from_thread(action)
