"""The app as its control sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from textual.app import App
from textual.widget import Widget
from textual.widgets import Static

from localspec.chat.conversation import Conversation
from localspec.errors import LocalspecError
from localspec.history.writer import HistoryWriter
from localspec.text import harmless
from localspec.tui import preferences
from localspec.tui.preferences import Preferences
from localspec.tui.session.background_engine import BackgroundEngine, PairReference
from localspec.tui.session.chat_session import ChatSession, Rest
from localspec.tui.session.clipboard import fill
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.prompt_input import PromptInput
from localspec.tui.widgets.sidebar import Sidebar
from localspec.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.notifications import SeverityLevel

W = TypeVar("W", bound=Widget)
Panel = Sidebar | FiguresPanel
_PANELS: dict[type[Panel], str] = {Sidebar: "sidebar", FiguresPanel: "figures"}
"""Their names in the preferences."""

WIDTHS = [(0, "-narrow"), (96, "-middling"), (132, "-wide"), (170, "-huge")]
HEIGHTS = [(0, "-tiny"), (9, "-low"), (16, "-high")]
"""Columns and rows from which the screen has a class, for `styles.tcss`."""

NONE_YET = "There is no conversation to continue yet. Write a message to begin one."
PROMPTS = 100
"""Messages that the arrow keys bring back from before."""


class Host(App[None]):
    """What all parts use; `localspec.tui.app.ChatApp` completes it. `given`: sampling, longest
    answer and system prompt of the command line."""

    preferences: Preferences
    store: HistoryWriter
    engine: BackgroundEngine
    chat_session: ChatSession
    offline: bool | None
    given: tuple[dict[str, float | int], int | None, str | None]

    # The parts of the chat's screen, also while a dialog is open over it

    @property
    def transcript(self) -> Transcript:
        return self.part(Transcript)

    @property
    def composer(self) -> Composer:
        return self.part(Composer)

    @property
    def prompt(self) -> PromptInput:
        return self.part(PromptInput)

    @property
    def sidebar(self) -> Sidebar:
        return self.part(Sidebar)

    @property
    def narrow(self) -> bool:
        """Whether there is no room for a panel beside the conversation."""
        return self.screen_stack[0].has_class("-narrow")

    def part(self, kind: type[W]) -> W:
        return self.screen_stack[0].query_one(kind)

    def line(self, selector: str) -> Static:
        return self.screen_stack[0].query_one(selector, Static)

    def tell(self, text: str, *, error: bool = False) -> None:
        severity: SeverityLevel = "error" if error else "information"
        self.notify(harmless(text), severity=severity, markup=False, timeout=8)

    def attempt(self, action: Callable[[], Rest | None]) -> None:
        """Act, and tell of a LocalspecError; a worker does what remains."""
        try:
            rest = action()
        except LocalspecError as error:
            self.tell(str(error), error=True)
        else:
            if rest is not None:
                # The screen's worker ends before the screen does, which it shows something on.
                self.screen_stack[0].run_worker(self._finish(rest))

    async def _finish(self, rest: Rest) -> None:
        try:
            await rest
        except LocalspecError as error:
            self.tell(str(error), error=True)

    async def ask(self, text: str, answers: Mapping[str, str]) -> str | None:
        """Ask a question; the id of the chosen answer, None for Escape. `answers`: texts by id."""
        from localspec.tui.screens.dialogs import QuestionScreen

        return await self.push_screen_wait(QuestionScreen(text, answers))

    def copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        if not self.is_headless:
            self.run_worker(partial(fill, text), thread=True, group="copy")
        self.tell(f"Copied {len(text):,} characters.")

    def save_preferences(self) -> None:
        trouble = preferences.save(self.preferences)
        if trouble is not None:
            self.tell(trouble, error=True)

    # Panels: beside the conversation, or over it on a narrow screen

    def restore_panels(self) -> None:
        for kind, name in _PANELS.items():
            self._fold(kind, getattr(self.preferences, name))

    def toggle(self, kind: type[Panel]) -> None:
        panel = self.part(kind)
        show = not panel.display
        if self.narrow:
            panel.set_class(show, "over")
            self.fit_panels()
        else:
            self._fold(kind, show)
            setattr(self.preferences, _PANELS[kind], show)
            self.save_preferences()
        if not show and not self.prompt.has_focus:
            self.prompt.focus()

    def fit_panels(self) -> None:
        """Panels over the conversation end where it does: the input stays in view."""
        for kind in _PANELS:
            panel = self.part(kind)
            over = panel.has_class("over")
            panel.styles.height = self.transcript.outer_size.height if over else None

    def uncover(self) -> None:
        """Close what lies over the conversation, and focus the input."""
        for kind in _PANELS:
            self.part(kind).remove_class("over")
        # At once: `focus` waits its turn, and would take what has been gone to meanwhile.
        self.prompt.screen.set_focus(self.prompt)

    def _fold(self, kind: type[Panel], show: bool | None) -> None:
        """Beside the conversation; None goes by the width."""
        panel = self.part(kind)
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")

    # What is shown, and by which models

    def show(
        self, conversation: Conversation, message: str | None = None, *, uncover: bool = True
    ) -> None:
        """Show this conversation and message; `uncover` to write in it at once."""
        hidden = message is not None and message not in {m.id for m in conversation.path()}
        if message is not None and hidden and message in conversation.messages:
            conversation.select(message)
        self.composer.leave_edit()
        self.chat_session.begin(conversation)
        self.transcript.select_message(message)
        if uncover:
            self.uncover()

    def new_conversation(self) -> Conversation:
        """An empty one, with the settings of preferences and command line."""
        stored = self.preferences
        sampling, max_tokens, system = self.given
        return Conversation(
            system=system or stored.system,
            sampling={**stored.sampling, **sampling},
            max_tokens=max_tokens or stored.max_tokens,
        )

    def open(self, pair: PairReference, *, chosen: bool = True) -> Rest:
        """Open this pair, now and, if that works and the user has chosen it, next time."""
        opening = self.chat_session.open(pair)

        async def opened() -> None:
            await opening
            now = self.chat_session.opened
            if chosen and now is not None and now.pair == pair:
                self.preferences.model, self.preferences.draft = pair.model, pair.draft
                self.save_preferences()

        return opened()

    def show_tokens(self, tokens: bool, rejected: bool) -> None:
        """How answers are shown, now and next time."""
        self.transcript.tokens, self.transcript.rejected = tokens, rejected
        self.preferences.tokens, self.preferences.rejected = tokens, rejected
        self.save_preferences()

    # The history, for which a thread may have to wait

    async def open_history(self, kept: Conversation | None, *, resume: bool) -> None:
        """Open and list it. `kept`: from a session file; the history's own replaces it, or takes it
        in; `resume`: show the newest one."""
        history = await asyncio.to_thread(lambda: self.store.history)
        if kept is not None:
            await self._find(kept)
        self.prompt.remember(await asyncio.to_thread(history.recent_prompts, limit=PROMPTS))
        if resume:
            newest = await asyncio.to_thread(history.list, limit=1)
            if newest:
                self.take(newest[0].id)
            else:
                self.tell(NONE_YET)
        self.sidebar.list()

    def take(self, conversation: str, message: str | None = None) -> None:
        """Show a conversation and a message in it; a later call overrides an earlier one."""
        taking = self._take(conversation, message)
        self.screen_stack[0].run_worker(taking, group="take", exclusive=True)

    async def delete(self, conversation: str) -> None:
        """Delete a conversation, if the user confirms it."""
        question = "Delete this conversation? It cannot be brought back."
        if await self.ask(question, {"keep": "Keep it", "delete": "Delete it"}) != "delete":
            return
        self.chat_session.forget(conversation)
        await asyncio.shield(asyncio.wrap_future(self.store.delete([conversation])))
        if self.chat_session.conversation.id == conversation:
            self.show(self.new_conversation())
        self.sidebar.list()

    async def _take(self, conversation: str, message: str | None) -> None:
        try:
            found = await self._load(conversation)
        except LocalspecError as error:
            self.tell(str(error), error=True)
            self.sidebar.list()  # another chat may have deleted it
            return
        # Whoever went elsewhere meanwhile is typing there. What had the focus when this was asked
        # for is of no use: a key may go elsewhere before the list's message is here.
        self.show(found, message, uncover=self.sidebar.choosing)

    async def _find(self, kept: Conversation) -> None:
        """Show the history's version of it, unless something was done already."""
        try:
            found = await self._load(kept.id)
        except LocalspecError:
            self.store.put(kept)
            return
        chat_session = self.chat_session
        unchanged = chat_session.conversation is kept and chat_session.running is None
        if unchanged and kept.tip in found.messages:
            found.tip = kept.tip
            self.show(found)

    async def _load(self, conversation: str) -> Conversation:
        return await asyncio.to_thread(lambda: self.store.history.load(conversation))
