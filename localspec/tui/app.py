"""The Textual app: layout, key bindings and message handlers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events, on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.theme import ThemeProvider
from textual.widgets import Input, TextArea

from localspec.chat.conversation import Conversation
from localspec.errors import Cancelled
from localspec.history.writer import HistoryWriter
from localspec.hub.packages import default_reference
from localspec.paths import history_file
from localspec.tui.control.actions import Actions
from localspec.tui.control.conversation_display import ConversationDisplay
from localspec.tui.control.host import HEIGHTS, WIDTHS, Host
from localspec.tui.rendering.message_lines import prepare
from localspec.tui.rendering.palette import Palette
from localspec.tui.session import commands, preferences
from localspec.tui.session.background_engine import BackgroundEngine, PairReference
from localspec.tui.session.chat_session import ChatSession
from localspec.tui.session.session_conversation import kept

if TYPE_CHECKING:
    from localspec.history.history import History

DOUBLE_PRESS = 2.0
"""Seconds within which a second Ctrl+C quits."""
PREPARE_AFTER = 0.3
"""Seconds from the first paint to loading what the first answer needs."""
_priority = partial(Binding, priority=True)


class ChatApp(Host):
    """The app of `localspec chat`. `pair`: None for the last one, or the built-in one; `engine`:
    opens the models, with its own options; `sampling`, `max_tokens`, `system`: for the first and
    new conversations, instead of the preferences; `session`: the conversation of a session file;
    `resume`: show the last conversation; `trouble`: a sentence about an error while closing."""

    CSS_PATH = "styles.tcss"
    TITLE = "localspec"
    BINDING_GROUP_TITLE = "Everywhere"
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        _priority("f1", "keys", "Keys and commands", show=False),
        Binding("escape", "stop", "Close what is open, or stop the answer", show=False),
        _priority("ctrl+n", "command('new')", "New", tooltip="New conversation"),
        _priority("ctrl+o", "command('model')", "Model", tooltip="Choose the model and its draft"),
        _priority("ctrl+t", "command('tokens')", "Tokens", tooltip="Colour tokens by drafter"),
        _priority("ctrl+g", "command('figures')", "Figures", tooltip="Show or hide the figures"),
        _priority("ctrl+b", "command('sidebar')", "List", tooltip="Show or hide the conversations"),
        _priority("ctrl+f", "command('search')", "Search all conversations", show=False),
        _priority("ctrl+r", "command('regenerate')", "Answer again, as a branch", show=False),
        Binding("ctrl+s", "command('set')", "System prompt and sampling parameters", show=False),
        Binding("f2", "command('why')", "Why this speed", show=False),
        Binding("question_mark", "keys", "Keys and commands", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("ctrl+l", "redraw", "Draw the screen again", show=False),
        _priority("ctrl+c", "interrupt", "Copy, stop, clear, or quit", show=False),
        # In the input it is undo, until there is nothing left to undo.
        Binding("ctrl+z", "suspend_process", "Suspend", show=False),
        _priority("ctrl+q", "quit", "Quit"),
    ]

    def __init__(
        self,
        pair: PairReference | None = None,
        *,
        engine: Callable[..., BackgroundEngine] = BackgroundEngine,
        sampling: dict[str, float | int] | None = None,
        max_tokens: int | None = None,
        system: str | None = None,
        session: Conversation | None = None,
        resume: bool = False,
    ) -> None:
        super().__init__()
        self.preferences, self._invalid = preferences.load()
        self._pair = pair
        self.given = (sampling or {}, max_tokens, system)
        self._resume = resume
        # It reports in its own thread.
        report_error = partial(self.call_later, self.show_notice, error=True)
        self.store = HistoryWriter(_history, on_trouble=report_error)
        self.conversation_display = ConversationDisplay(self)
        self.engine = engine(self.call_later)
        self.trouble: str | None = None
        self._kept = session
        first = self.new_conversation()
        if session is not None:
            session.sampling, session.max_tokens = first.sampling, first.max_tokens
            session.system = session.system or first.system
        self.chat_session = ChatSession(
            self.conversation_display, self.store, self.engine, session or first, self.preferences
        )
        self._actions = Actions(self, self.conversation_display)
        self.completed_values, self.send = self._actions.values, self._actions.send
        self._interrupted = -DOUBLE_PRESS
        self._width = 0  # of the conversation, when it was laid out last

    def on_mount(self) -> None:
        stored = self.preferences
        self.theme = stored.theme if stored.theme in self.available_themes else _default_theme()
        for panel in self.panels:
            self.set_panel(panel, getattr(stored, str(panel.id)))
        self.transcript.tokens, self.transcript.rejected = stored.tokens, stored.rejected
        self.prompt.focus()
        _handle_signals(self)
        # After a resume the screen is empty, but Textual paints only changes.
        self.app_resume_signal.subscribe(self, lambda _: self.refresh())
        self.screen.screen_layout_refresh_signal.subscribe(self, lambda _: self._laid_out())
        self.watch(self.sidebar, "newest", self.conversation_display.welcome, init=False)
        self.conversation_display.show_conversation()
        pair = PairReference(stored.model or default_reference(), stored.draft or "auto")
        # Before a message can be sent, which would find no model.
        self.attempt(partial(self.open, self._pair or pair, chosen=False))
        self.call_after_refresh(self._begin)

    def _laid_out(self) -> None:
        self.fit_panels()
        width = self.transcript.content_size.width
        if width != self._width:
            self._width = width
            self.conversation_display.redraw()

    def _begin(self) -> None:
        """Start everything that would delay the first paint."""
        if not self.is_running:  # the app has exited meanwhile
            return
        if not gc.isenabled():  # see `localspec.cli.chat`
            gc.freeze()
            gc.enable()
        if self._invalid:
            self.show_notice(self._invalid)
        self.engine.start()
        self.attempt(partial(self.open_history, self._kept, resume=self._resume))
        # While the model loads; at once it would delay the first paint.
        preparing = partial(prepare, Palette.of(self))
        self.set_timer(PREPARE_AFTER, partial(self.run_worker, preparing, thread=True))

    async def on_unmount(self) -> None:
        self.engine.end(timeout=10.0)
        self.chat_session.leave()
        told = [self.engine.close(kept(self.chat_session.conversation))]
        if not self.store.close():
            files = ", ".join(map(str, self.store.rescued))
            told.append(
                f"Messages of this chat are {f'in {files}' if files else 'not kept'}: the history "
                f"{history_file()} could not be written. Make room for it, make it writable, or "
                "close the program that locks it."
            )
        self.trouble = " ".join(filter(None, told)) or None

    # Actions

    @on(events.Key)
    @on(events.Paste)
    def _written_beside_the_input(self, event: events.Key | events.Paste) -> None:
        """Write it into the input: a click into the window takes the focus elsewhere."""
        if not self.screen_stack or isinstance(self.screen, ModalScreen):
            return
        if isinstance(event, events.Key):
            if not event.is_printable or event.key in self.screen.active_bindings:
                return
            event = events.Paste(event.character or "")
        self.screen.set_focus(self.prompt)
        self.prompt.post_message(events.Paste(event.text))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the chat do nothing to it while a dialog covers it."""
        return action != "command" or not isinstance(self.screen, ModalScreen)

    def action_stop(self) -> None:
        """Close completions or an edit, else stop the running work, else notices and overlays."""
        if self.composer.escape():
            return
        if self._is_busy():
            self.chat_session.stop()
        else:
            self.clear_notifications()  # which may cover the input of a small terminal
            self.close_overlays()

    def action_interrupt(self) -> None:
        """Copy the selection, else close a dialog, else stop an answer, else clear the input, which
        Up restores, else quit on the second press."""
        selected = self.screen.get_selected_text()
        if not selected and isinstance(self.focused, TextArea | Input):
            selected = self.focused.selected_text
        if selected:
            self.copy(selected)
            self.screen.clear_selection()
        elif isinstance(self.screen, ModalScreen):
            self.screen.dismiss(None)
        elif self._is_busy():
            self.chat_session.stop()
        elif self.prompt.text:
            self.composer.stash()
            self.show_notice("Up brings the text back. Ctrl+C twice quits.")
        elif monotonic() - self._interrupted < DOUBLE_PRESS:
            self.exit(return_code=Cancelled.exit_code)
        else:
            self._interrupted = monotonic()
            self.show_notice("Ctrl+C again quits. Everything is saved.")

    def _is_busy(self) -> bool:
        return self.conversation_display.doing is not None or self.chat_session.busy

    def action_message(self, command: str, argument: str = "") -> None:
        """Run a command on the selected message."""
        if self.transcript.selected is not None:
            self._actions.run(commands.BY_NAME[command], argument, self.transcript.selected)

    def action_page(self, step: int) -> None:
        transcript = self.transcript
        (transcript.action_page_up if step < 0 else transcript.action_page_down)()

    def action_redraw(self) -> None:
        """Repaint the screen, over output of other programs."""
        self.refresh()

    def action_command(self, name: str) -> None:
        self._actions.run(commands.BY_NAME[name], "")

    def action_keys(self) -> None:
        from localspec.tui.screens.dialogs import ReadingScreen, keys_of

        if isinstance(self.screen, ReadingScreen):
            self.screen.dismiss()
            return
        self.push_screen(ReadingScreen(*keys_of(self.screen, self.get_key_display)))

    def action_command_palette(self) -> None:
        from localspec.tui.screens.dialogs import CommandScreen

        if not isinstance(self.screen, CommandScreen):
            self.push_screen(CommandScreen())

    def search_themes(self) -> None:
        from localspec.tui.screens.dialogs import CommandScreen

        self.push_screen(CommandScreen([ThemeProvider], placeholder="Search for themes…"))

    def watch_theme(self, theme: str) -> None:
        stored = self.preferences.theme or _default_theme()
        if self.is_running and self.screen_stack and theme != stored:
            self.preferences.theme = theme
            self.save_preferences()
            self.conversation_display.redraw()
            self.sidebar.list()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        for command in commands.COMMANDS:
            yield SystemCommand(
                f"/{command.name}", command.about, partial(self._actions.begin, command)
            )


def _history() -> History:
    from localspec.history.history import History

    return History()


def _handle_signals(app: Any) -> None:
    """Exit cleanly on signals, and set up the terminal only once after SIGSTOP, which cannot be
    caught: Textual would set it up again, and start a second thread that reads keys.

    Signals are handled in the event loop, as interrupted code may hold a lock. A terminal that is
    closed sends SIGCONT with SIGHUP, and a new thread that reads keys would outlive the app."""
    driver = app._driver
    if not hasattr(driver, "_key_thread"):  # Windows
        return
    stop: Any = signal.getsignal(signal.SIGTSTP)
    resume: Any = signal.getsignal(signal.SIGCONT)

    def resumed() -> None:
        if app.return_code is not None:
            return
        if driver._key_thread.is_alive():
            driver.suspend_application_mode()
            driver._must_signal_resume = True
        resume()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTSTP, stop)
    loop.add_signal_handler(signal.SIGCONT, resumed)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, partial(app.exit, return_code=128 + number))


def _default_theme() -> str:
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "textual-light" if background in ("7", "15") else "textual-dark"
