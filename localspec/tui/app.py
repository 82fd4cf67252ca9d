"""The Textual app: what is where on the screen, and who is told what."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message as TextualMessage
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Footer, Static, TextArea

from localspec.chat.conversation import Attachment, Conversation
from localspec.errors import Cancelled, LocalspecError, UsageError
from localspec.tui import preferences
from localspec.tui.control.command_actions import CommandActions
from localspec.tui.control.conversation_display import ConversationDisplay
from localspec.tui.control.conversation_list import ConversationList
from localspec.tui.control.dialogs import Dialogs
from localspec.tui.control.panels import Panels
from localspec.tui.rendering.message_lines import prepare
from localspec.tui.rendering.palette import Palette
from localspec.tui.session import commands
from localspec.tui.session.background_engine import BackgroundEngine, Loader
from localspec.tui.session.conversing import Conversing
from localspec.tui.session.events import Event, Opened, PairReference, event_id
from localspec.tui.session.history_access import HistoryAccess
from localspec.tui.session.titling import TITLE
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.figures_panel import FiguresPanel
from localspec.tui.widgets.prompt_input import PromptInput
from localspec.tui.widgets.sidebar import Sidebar
from localspec.tui.widgets.status_line import StatusLine
from localspec.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from localspec import Drafting, ModelOptions

W = TypeVar("W", bound=Widget)

PREPARE_AFTER = 0.3
"""Seconds after the first paint until what the first answer needs is loaded."""
TWICE = 2.0
"""Seconds within which a second Ctrl+C leaves."""


class EngineEvent(TextualMessage):
    """Something from the engine's thread."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event


class ChatApp(App[None]):
    """`localspec chat`.

    Args:
        pair: what to open; None for what was open last, else the embedded pair.
        options, drafting, offline: as for `localspec.load`.
        sampling, max_tokens, system: for new conversations, over what the preferences say.
        loader: `localspec.load`, or what a test puts in its place.
        notices: sentences to begin with.
    """

    CSS_PATH = "styles.tcss"
    TITLE = "localspec"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-narrow"),
        (96, "-middling"),
        (132, "-wide"),
        (170, "-huge"),
    ]
    VERTICAL_BREAKPOINTS = [  # noqa: RUF012
        (0, "-tiny"),
        (9, "-low"),
        (16, "-high"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "keys", "Keys", priority=True),
        Binding("escape", "stop", "Stop", show=False),
        Binding("ctrl+n", "new", "New", priority=True),
        Binding("ctrl+o", "model", "Model", priority=True),
        Binding("ctrl+t", "tokens", "Tokens", priority=True),
        Binding("ctrl+g", "figures", "Figures", priority=True),
        Binding("ctrl+b", "sidebar", "List", priority=True),
        Binding("ctrl+f", "search", "Search", priority=True, show=False),
        Binding("ctrl+r", "regenerate", "Again", priority=True, show=False),
        Binding("ctrl+s", "settings", "Settings", show=False),
        Binding("f2", "why", "Why this speed", show=False),
        Binding("question_mark", "keys", "Keys", show=False),
        Binding("ctrl+c", "interrupt", "Copy, stop, or leave", show=False, priority=True),
        # In the input it takes back what was written, as long as there is something.
        Binding("ctrl+z", "suspend_process", "Suspend", show=False),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(
        self,
        pair: PairReference | None = None,
        *,
        options: ModelOptions | None = None,
        drafting: Drafting | None = None,
        offline: bool | None = None,
        sampling: dict[str, float | int] | None = None,
        max_tokens: int | None = None,
        system: str | None = None,
        loader: Loader | None = None,
        notices: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.preferences, trouble = preferences.load()
        self._notices = [*notices, *([trouble] if trouble else ())]
        self._pair = pair
        self._said = (sampling or {}, max_tokens, system)
        self.conversation_display = ConversationDisplay(self)
        self.conversation_list = ConversationList(self)
        self.dialogs = Dialogs(self)
        self.panels = Panels(self)
        self.history = HistoryAccess(self.conversation_display.tell_from_thread)
        self.engine = BackgroundEngine(
            lambda event: self.post_message(EngineEvent(event)),
            options=options,
            drafting=drafting,
            offline=offline,
            loader=loader,
        )
        self.conversing = Conversing(
            self.conversation_display, self.history, self.engine, self.new_conversation()
        )
        self.chosen: PairReference | None = None
        self._commands = CommandActions(self)
        self._interrupted = -TWICE

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        with Horizontal(id="body"):
            yield Sidebar(id="sidebar")
            with Vertical(id="middle"):
                yield Transcript(id="transcript")
                yield Static(id="legend", markup=False)
                yield StatusLine(id="status")
                yield Composer(self._commands.completers, id="composer")
            yield FiguresPanel(id="figures")
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        said = self.preferences
        self.theme = said.theme if said.theme in self.available_themes else _first_theme()
        self.panels.restore()
        self.transcript.tokens, self.transcript.rejected = said.tokens, said.rejected
        self.prompt.focus()
        self.conversation_display.show_conversation()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        """After the first paint: all that could keep it waiting."""
        if not gc.isenabled():  # see open_chat
            gc.freeze()
            gc.enable()
        for notice in self._notices:
            self.conversation_display.tell(notice)
        self.engine.open(
            self._pair or PairReference(self.preferences.model, self.preferences.draft or "auto")
        )
        self.conversation_list.open()
        # While the model loads; at once it would hold up the first paint.
        self.set_timer(PREPARE_AFTER, self._prepare)

    def _prepare(self) -> None:
        self.run_worker(partial(prepare, Palette.of(self)), thread=True, group="prepare")

    async def on_unmount(self) -> None:
        self.engine.close(timeout=10.0, last=self.conversing.leave)
        self.history.close()

    # Parts of the screen

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

    def part(self, kind: type[W]) -> W:
        """The one widget of its kind; also while a dialog is open over it."""
        return self.screen_stack[0].query_one(kind)

    def static(self, selector: str) -> Static:
        """A line of text of the screen, dialog or not."""
        return self.screen_stack[0].query_one(selector, Static)

    # From the engine's thread

    @on(EngineEvent)
    def _engine_event(self, message: EngineEvent) -> None:
        event = message.event
        self.conversing.on_event(event)
        # Only what could be opened is worth opening next time.
        if isinstance(event, Opened) and event.pair == self.chosen:
            self.remember(model=event.pair.model, draft=event.pair.draft)
        elif event_id(event) == TITLE:
            self.conversation_list.list()

    # From the input

    @on(PromptInput.Sent)
    def _sent(self, event: PromptInput.Sent) -> None:
        text = event.text
        try:
            command = commands.parse(text.strip())
            if command is not None:
                self.prompt.accepted(text)
                self._commands.run(*command)
                return
            if self.conversing.running is not None:
                raise UsageError("An answer is still coming. Wait for it, or stop it with Esc.")
        except LocalspecError as error:
            self.conversation_display.tell(str(error), error=True)
            return
        self.prompt.accepted(text)
        self._send(commands.unescaped(text), *self.composer.taken())

    @work(group="send")
    async def _send(self, text: str, attached: list[Attachment], instead_of: str | None) -> None:
        try:
            await self.conversing.send(text, attached, instead_of=instead_of)
        except LocalspecError as error:
            # Sent in the same moment as another one: it was too early to know.
            self.conversation_display.tell(str(error), error=True)
            if not self.prompt.text:
                self.prompt.put(text)
        self.conversation_list.list()

    @on(PromptInput.KeysWanted)
    def _keys_wanted(self) -> None:
        self.action_keys()

    # From the conversation and the list

    @on(Transcript.Act)
    def _act(self, event: Transcript.Act) -> None:
        self.attempt(partial(self._commands.act, event.action, event.message))

    @on(Sidebar.Chosen)
    def _conversation_chosen(self, event: Sidebar.Chosen) -> None:
        self.conversation_list.take(event.conversation, event.message)

    @on(Sidebar.Searched)
    def _searched(self, event: Sidebar.Searched) -> None:
        self.conversation_list.search(event.query)

    @on(Sidebar.MoreWanted)
    def _more(self, event: Sidebar.MoreWanted) -> None:
        self.conversation_list.list(event.listed)

    @on(Sidebar.DeleteWanted)
    def _delete_wanted(self, event: Sidebar.DeleteWanted) -> None:
        self.dialogs.delete(event.conversation)

    @on(Sidebar.Left)
    def _sidebar_left(self) -> None:
        self.panels.uncover()

    def show(self, conversation: Conversation, message: str | None = None) -> None:
        """Show this conversation, and in it this message."""
        hidden = message is not None and message not in {m.id for m in conversation.path()}
        if message is not None and hidden and message in conversation.messages:
            conversation.select(message)
        self.composer.leave_edit()
        self.conversing.begin(conversation)
        self.transcript.select_message(message)
        self.panels.uncover()

    def new_conversation(self) -> Conversation:
        """An empty one, with what the preferences and the command line say."""
        said = self.preferences
        sampling, max_tokens, system = self._said
        return Conversation(
            system=system or said.system,
            sampling={**said.sampling, **sampling},
            max_tokens=max_tokens or said.max_tokens,
        )

    # Actions

    def attempt(self, action: Callable[[], object]) -> None:
        """Do it, or tell why not."""
        try:
            action()
        except LocalspecError as error:
            self.conversation_display.tell(str(error), error=True)

    def action_stop(self) -> None:
        """Esc: close what is open, else stop what runs."""
        if self.composer.escape():
            return
        if self.conversation_display.doing is not None or self.conversing.running is not None:
            self.conversing.stop()
        else:
            self.panels.uncover()

    def action_interrupt(self) -> None:
        """Ctrl+C: copy what is selected, else the innermost thing that can end ends."""
        focused = self.focused
        selected = self.screen.get_selected_text()
        if not selected and isinstance(focused, TextArea):
            selected = focused.selected_text
        if selected:
            self.copy(selected)
        elif isinstance(self.screen, ModalScreen):
            self.screen.dismiss(None)
        elif self.conversation_display.doing is not None or self.conversing.running is not None:
            self.conversing.stop()
        elif self._loop_time() - self._interrupted < TWICE:
            self.exit(return_code=Cancelled.exit_code)
        else:
            self._interrupted = self._loop_time()
            self.conversation_display.tell("Ctrl+C again leaves. Everything is kept.")

    def _loop_time(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def action_new(self) -> None:
        self.show(self.new_conversation())

    def action_model(self) -> None:
        self._commands.run(commands.BY_NAME["model"], "")

    def action_settings(self) -> None:
        self._commands.run(commands.BY_NAME["set"], "")

    def action_regenerate(self) -> None:
        self.attempt(self.conversing.regenerate)

    def action_why(self) -> None:
        self._commands.run(commands.BY_NAME["why"], "")

    def action_tokens(self) -> None:
        """Markdown, tokens, tokens with what was rejected, and round again."""
        now = (self.transcript.tokens, self.transcript.rejected)
        self.show_tokens(
            *{(False, False): (True, False), (True, False): (True, True)}.get(now, (False, False))
        )

    def show_tokens(self, tokens: bool, rejected: bool) -> None:
        """How answers are shown, now and next time."""
        self.transcript.tokens, self.transcript.rejected = tokens, rejected
        self.remember(tokens=tokens, rejected=rejected)
        self.conversation_display.legend()

    def action_figures(self) -> None:
        self.panels.toggle(FiguresPanel)
        self.conversation_display.figures()

    def action_sidebar(self) -> None:
        self.panels.toggle(Sidebar)

    def action_search(self) -> None:
        """Put the cursor into the search, opening the list if need be."""
        if not self.sidebar.display:
            self.action_sidebar()
        self.sidebar.focus_search()

    def action_keys(self) -> None:
        """The keys that apply where the focus is."""
        from localspec.tui.screens.keys_screen import KeysScreen, keys_of

        self.push_screen(KeysScreen(keys_of(self.screen, self.get_key_display)))

    def copy(self, text: str) -> None:
        """To the clipboard, through the terminal."""
        self.copy_to_clipboard(text)
        self.conversation_display.tell(f"Copied {len(text):,} characters.")

    def remember(self, **what: Any) -> None:
        """Keep preferences."""
        for name, value in what.items():
            setattr(self.preferences, name, value)
        trouble = preferences.save(self.preferences)
        if trouble is not None:
            self.conversation_display.tell(trouble, error=True)

    def watch_theme(self, theme: str) -> None:
        if self.is_running and self.screen_stack and theme != self.preferences.theme:
            self.remember(theme=theme)
            self.conversation_display.legend()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The slash commands, in the palette as well."""
        yield from super().get_system_commands(screen)
        for command in commands.COMMANDS:
            yield SystemCommand(
                f"/{command.name}", command.about, partial(self._commands.begin, command)
            )


def _first_theme() -> str:
    """Light where the terminal says that it is light."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "textual-light" if background in ("7", "15") else "textual-dark"
