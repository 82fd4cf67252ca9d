"""The list of conversations, filled from the history by threads that may wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from localspec.chat.conversation import Conversation
from localspec.errors import LocalspecError
from localspec.tui.control.host import Host

if TYPE_CHECKING:
    from localspec.history.history import ConversationSummary, SearchHit


NONE_YET = "There is no conversation to continue yet. Write a message to begin one."
PAGE = 100
"""Conversations listed at a time."""


class ConversationList:
    """Asks the history and shows its answers. `newest`: the conversation added to last; None before
    any is known."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._wanted = 0
        self.newest: ConversationSummary | None = None
        self.on_listed: Callable[[], object] = lambda: None

    def open(self, kept: Conversation | None = None, *, resume: bool = False) -> None:
        """Open and list the history. `kept`: from a session file; the history's own replaces it, or
        takes it in; `resume`: show the newest one."""
        self._in_thread("open", partial(self._open, kept, resume))

    def list(self, offset: int = 0) -> None:
        limit = PAGE if offset else max(PAGE, self._host.sidebar.listed)

        def ask() -> None:
            self._host.store.flush(timeout=1.0)  # what was written just now is listed, too
            found = self._host.store.history.list(limit=limit, offset=offset)
            self._back(partial(self._list, found, offset))

        self._in_thread("list", ask)

    def search(self, query: str) -> None:
        if not query:
            self.list()
            return

        def ask() -> None:
            self._back(
                partial(self._found, query, self._host.store.history.search(query, limit=PAGE))
            )

        self._in_thread("list", ask)

    def take(self, conversation: str, message: str | None) -> None:
        """Show a conversation and a message in it; a later call overrides an earlier one."""
        self._wanted += 1
        wanted = self._wanted

        def show(found: Conversation) -> None:
            # A thread cannot be cancelled: what an earlier key asked for may come late.
            if wanted == self._wanted:
                # Whoever went elsewhere meanwhile is typing there. What had the focus when this was
                # asked for is of no use: a key may go elsewhere before the list's message is here.
                self._host.show(found, message, uncover=self._host.sidebar.choosing)

        def ask() -> None:
            try:
                found = self._host.store.history.load(conversation)
            except LocalspecError as error:
                self._back(partial(self._host.tell, str(error), error=True))
                self._back(self.list)  # another chat may have deleted it
            else:
                self._back(partial(show, found))

        self._in_thread("take", ask)

    def delete(self, conversation: str) -> None:
        """Delete a conversation, if the user confirms it."""
        answers = [("keep", "Keep it"), ("delete", "Delete it")]

        def answered(answer: str) -> None:
            if answer == "delete":
                self._host.run_worker(self._delete(conversation), group="delete")

        self._host.ask("Delete this conversation? It cannot be brought back.", answers, answered)

    def leave(self) -> None:
        """Back to the input."""
        self._host.uncover()

    async def _delete(self, conversation: str) -> None:
        conversing = self._host.conversing
        conversing.forget(conversation)
        try:
            await asyncio.shield(asyncio.wrap_future(self._host.store.delete([conversation])))
        except LocalspecError as error:
            self._host.tell(str(error), error=True)
            return
        if conversing.conversation.id == conversation:
            self._host.show(self._host.new_conversation())
        self.list()

    def _open(self, kept: Conversation | None, resume: bool) -> None:
        if kept is not None:
            self._find(kept)
        history = self._host.store.history
        recent = history.recent_prompts(limit=PAGE)
        self._back(lambda: self._host.prompt.remember(recent))
        if resume:
            newest = history.list(limit=1)
            if newest:
                self._back(partial(self.take, newest[0].id, None))
            else:
                self._back(partial(self._host.tell, NONE_YET, error=False))
        self._back(self.list)

    def _find(self, kept: Conversation) -> None:
        try:
            found = self._host.store.history.load(kept.id)
        except LocalspecError:
            self._host.store.put(kept)
            return
        if kept.tip in found.messages:
            found.tip = kept.tip
            self._back(partial(self._replace, kept, found))

    def _replace(self, kept: Conversation, found: Conversation) -> None:
        """Show the history's version, unless something was done already."""
        conversing = self._host.conversing
        if conversing.conversation is kept and conversing.running is None:
            self._host.show(found)

    def _list(self, found: Sequence[ConversationSummary], offset: int) -> None:
        sidebar = self._host.sidebar
        if not offset:
            self.newest = found[0] if found else None
            self.on_listed()
        if not sidebar.searching:
            sidebar.list(found, more=offset > 0)

    def _found(self, query: str, hits: Sequence[SearchHit]) -> None:
        if self._host.sidebar.searching == query:
            self._host.sidebar.found(hits)

    def _in_thread(self, group: str, work: Callable[[], None]) -> None:
        self._host.run_worker(work, thread=True, group=group, exclusive=True)

    def _back(self, action: Callable[[], object]) -> None:
        """In the screen's thread, unless that is over."""

        def act() -> None:
            if self._host.screen_stack:
                action()

        if self._host.is_running:
            self._host.call_from_thread(act)
