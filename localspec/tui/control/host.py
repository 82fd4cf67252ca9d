"""Base class of the app, with the interface that `control` uses."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from textual.app import App, ComposeResult
from textual.containers import Horizontal, Vertical
from textual.notifications import SeverityLevel
from textual.widgets import Footer, Static

from localspec.chat.conversation import Conversation, new_id
from localspec.errors import LocalspecError
from localspec.history.writer import HistoryWriter
from localspec.text import harmless
from localspec.tui.session import preferences
from localspec.tui.session.background_engine import BackgroundEngine, PairReference
from localspec.tui.session.chat_session import ChatSession, Continuation
from localspec.tui.session.preferences import Preferences
from localspec.tui.widgets.composer import Composer, Known, PromptInput
from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.sidebar import Sidebar
from localspec.tui.widgets.transcript import Transcript

WIDTHS = [(0, "-narrow"), (96, "-medium"), (132, "-wide"), (170, "-huge")]
HEIGHTS = [(0, "-tiny"), (9, "-low"), (16, "-high")]
"""Minimum columns and rows of the screen's classes in `styles.tcss`."""

NONE_YET = "There is no conversation to continue yet. Write a message to begin one."
_LONGEST = 600  # characters of a notice, which would cover the screen otherwise

_PROGRAMS = {
    "pbcopy": "",
    "wl-copy": "WAYLAND_DISPLAY",
    "xclip -selection clipboard": "DISPLAY",
    "xsel --clipboard --input": "DISPLAY",
    "tmux load-buffer -w -": "TMUX",
    "clip.exe": "WSL_DISTRO_NAME",
}
"""Commands that read a text, and the environment variable that each requires."""


class Host(App[None]):
    """Base class of `localspec.tui.app.ChatApp`. `given`: sampling, `max_tokens` and system prompt
    of the command line; `completed_values`, `send`: as for `PromptInput`."""

    AUTO_FOCUS = "PromptInput"  # not the list's search, which is the first widget
    preferences: Preferences
    store: HistoryWriter
    engine: BackgroundEngine
    chat_session: ChatSession
    given: tuple[dict[str, float | int], int | None, str | None]
    completed_values: Known
    send: Callable[[str], object]

    def compose(self) -> ComposeResult:
        self.title_line = Static(id="title", markup=False)
        self.legend_line = Static(id="legend", markup=False)
        self.status_line = Static(id="status", markup=False)
        self.transcript = Transcript()
        self.sidebar = Sidebar(
            self.store,
            open=self.open_conversation,
            delete=lambda conversation: self.attempt(partial(self.delete, conversation)),
            leave=self.close_overlays,
        )
        self.figures_panel = FiguresPanel(id="figures")
        self.prompt = PromptInput(self.completed_values, self.send, self.resume)
        self.composer = Composer(self.prompt)
        yield self.title_line
        with Horizontal(id="body"):
            yield self.sidebar
            with Vertical(id="middle"):
                yield self.transcript
                yield self.legend_line
                yield self.status_line
                yield self.composer
            yield self.figures_panel
        yield Footer(compact=True, show_command_palette=False)

    def show_notice(self, text: str, *, error: bool = False) -> None:
        severity: SeverityLevel = "error" if error else "information"
        text = harmless(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        cells = max(1, min(60, self.size.width // 2) - 5)
        room = self.size.height - 8 - len(text) // cells
        for shown in reversed(list(self._notifications)):
            room -= 3 + len(shown.message) // cells
            if shown.message == text or room < 0:  # they would cover the input
                self._unnotify(shown, refresh=False)
        self.notify(text, severity=severity, markup=False, timeout=30 if error else 8)

    def attempt(self, action: Callable[[], Continuation | None]) -> None:
        """Run an action, and show a LocalspecError; a worker runs its continuation."""
        try:
            continuation = action()
        except LocalspecError as error:
            self.show_notice(str(error), error=True)
        else:
            if continuation is not None:
                # A worker of the screen, so that it ends before the screen it draws on.
                self.screen_stack[0].run_worker(self._finish(continuation))

    async def _finish(self, continuation: Continuation) -> None:
        try:
            await continuation
        except LocalspecError as error:
            self.show_notice(str(error), error=True)

    async def ask(self, text: str, answers: Mapping[str, str]) -> str | None:
        """Ask a question; returns the id of the chosen answer, None for Escape. `answers`: texts by
        id."""
        from localspec.tui.screens.dialogs import QuestionScreen

        return await self.push_screen_wait(QuestionScreen(text, answers))

    def copy(self, text: str) -> None:
        self.copy_to_clipboard(text)
        if not self.is_headless:
            self.run_worker(partial(_copy_text, text), thread=True, group="copy")
        self.show_notice(f"Copied {len(text):,} characters.")

    def save_preferences(self) -> None:
        trouble = preferences.save(self.preferences)
        if trouble is not None:
            self.show_notice(trouble, error=True)

    # Panels: beside the conversation, or over it on a narrow screen

    @property
    def panels(self) -> tuple[Sidebar, FiguresPanel]:
        """The panels, whose ids are their names in the preferences."""
        return self.sidebar, self.figures_panel

    def toggle(self, panel: Sidebar | FiguresPanel) -> None:
        show = not panel.display
        if self.screen_stack[0].has_class("-narrow"):
            panel.set_class(show, "over")
            self.fit_panels()
        else:
            self.set_panel(panel, show)
            setattr(self.preferences, str(panel.id), show)
            self.save_preferences()
        if not show and not self.prompt.has_focus:
            self.prompt.focus()

    def fit_panels(self) -> None:
        """Limit panels over the conversation to its height, so that the input stays visible."""
        for panel in self.panels:
            over = panel.has_class("over")
            if over or panel.styles.inline.has_rule("height"):  # else: an endless layout
                panel.styles.height = self.transcript.outer_size.height if over else None
            if panel.has_focus_within and not panel.display:
                self.prompt.screen.set_focus(self.prompt)

    def close_overlays(self) -> None:
        """Close panels over the conversation, and focus the input."""
        for panel in self.panels:
            panel.remove_class("over")
        # Not `focus`, which is deferred and would take the focus from a later target.
        self.prompt.screen.set_focus(self.prompt)

    def set_panel(self, panel: Sidebar | FiguresPanel, show: bool | None) -> None:
        """Show or hide a panel beside the conversation; None depends on the width."""
        panel.set_class(show is True, "open")
        panel.set_class(show is False, "shut")

    # The shown conversation, and the open pair

    def show(
        self, conversation: Conversation, message: str | None = None, *, close_overlays: bool = True
    ) -> None:
        """Show a conversation, and a message in it. `close_overlays`: also focus the input."""
        hidden = conversation.messages.keys() - {shown.id for shown in conversation.path()}
        if message in hidden:
            conversation.select(message)
        self.composer.end_edit()
        self.chat_session.begin(conversation)
        self.transcript.select_message(message)
        if close_overlays:
            self.close_overlays()

    def new_conversation(self) -> Conversation:
        """Create an empty conversation with the settings of preferences and command line."""
        stored = self.preferences
        return self._with_given(
            Conversation(
                system=stored.system, sampling=stored.sampling, max_tokens=stored.max_tokens
            )
        )

    def _with_given(self, conversation: Conversation) -> Conversation:
        sampling, max_tokens, system = self.given
        conversation.system = system or conversation.system
        conversation.sampling = {**conversation.sampling, **sampling}
        conversation.max_tokens = max_tokens or conversation.max_tokens
        return conversation

    def open(self, pair: PairReference, *, chosen: bool = True) -> Continuation:
        """Open a pair; if the user has `chosen` it and it opens, store it in the preferences."""
        opening = self.chat_session.open(pair)

        async def opened() -> None:
            await opening
            now = self.chat_session.opened
            if chosen and now is not None and now.pair == pair:
                self.preferences.model, self.preferences.draft = pair.model, pair.draft
                self.save_preferences()

        return opened()

    def show_tokens(self, tokens: bool, rejected: bool) -> None:
        """Set how answers are shown, and store it in the preferences."""
        self.transcript.tokens, self.transcript.rejected = tokens, rejected
        self.preferences.tokens, self.preferences.rejected = tokens, rejected
        self.save_preferences()

    # The history, which is read in threads

    async def open_history(self, kept: Conversation | None, *, resume: bool) -> None:
        """Open the history, and list it. `kept`: conversation of a session file, replaced by the
        history's version or added to the history; `resume`: show the newest conversation."""
        history = await asyncio.to_thread(lambda: self.store.history)
        if kept is not None:
            await self._restore_session(kept)
        self.prompt.remember(await asyncio.to_thread(history.recent_prompts))
        if resume:
            newest = await asyncio.to_thread(history.list, limit=1)
            if newest:
                await self._open_conversation(newest[0].id, None)
                self._with_given(self.chat_session.conversation)
            else:
                self.show_notice(NONE_YET)
        self.sidebar.list()

    def open_conversation(self, conversation: str, message: str | None = None) -> None:
        """Show a conversation and a message in it; a later call overrides an earlier one."""
        opening = self._open_conversation(conversation, message)
        self.screen_stack[0].run_worker(opening, group="take", exclusive=True)

    def resume(self) -> None:
        """Show the last conversation."""
        if self.sidebar.newest is not None:
            self.open_conversation(self.sidebar.newest.id)

    async def delete(self, conversation: str) -> None:
        """Delete a conversation, if the user confirms it."""
        question = "Delete this conversation? This cannot be undone."
        if await self.ask(question, {"keep": "Keep it", "delete": "Delete it"}) != "delete":
            return
        self.chat_session.forget(conversation)
        try:
            await asyncio.shield(asyncio.wrap_future(self.store.delete([conversation])))
        finally:  # also if only data learned from it is left
            self.sidebar.list()
            try:
                await self._load(conversation)
            except LocalspecError:
                if self.chat_session.conversation.id == conversation:
                    self.show(self.new_conversation())

    async def _open_conversation(self, conversation: str, message: str | None) -> None:
        try:
            found = await self._load(conversation)
        except LocalspecError as error:
            self.show_notice(str(error), error=True)
            self.sidebar.list()  # another chat may have deleted it
            return
        # Do not take the focus from a user who has moved on. The focus at the time of the request
        # is no guide: keys may have moved it before the list's message arrived.
        self.show(found, message, close_overlays=self.sidebar.choosing)

    async def _restore_session(self, kept: Conversation) -> None:
        """Show the history's version of a conversation, unless it was changed meanwhile, or lacks
        messages."""
        try:
            found = await self._load(kept.id)
        except LocalspecError:
            self.store.put(kept)
            return
        chat_session = self.chat_session
        if len(found.path()) < len(kept.messages):
            kept.id = new_id()
            self.store.put(kept)
        elif chat_session.conversation is kept and chat_session.running is None:
            self.show(found)

    async def _load(self, conversation: str) -> Conversation:
        return await asyncio.to_thread(lambda: self.store.history.load(conversation))


def _copy_text(text: str) -> None:
    """Copy a text with every available program, for terminals that block OSC 52."""
    for command, variable in _PROGRAMS.items():
        name, *options = command.split()
        program = shutil.which(name)
        if program is None or not (os.environ.get(variable) or not variable):
            continue
        data, nothing = text.encode("utf-16" if name == "clip.exe" else "utf-8"), subprocess.DEVNULL
        whole = [program, *options]
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                whole, input=data, stdout=nothing, stderr=nothing, timeout=5, check=False
            )
